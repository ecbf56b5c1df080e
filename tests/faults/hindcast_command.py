"""The `hindcast` command as a script that is killed."""

from hindcast.cli.main import main

if __name__ == "__main__":
    main()
