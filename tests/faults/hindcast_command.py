"""The `hindcast` command as a script, for tests that kill it."""

from hindcast.cli.main import main

if __name__ == "__main__":
    main()
