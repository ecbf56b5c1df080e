"""An application that logs short episodes and prints each logged step as `<episode> <t>`.

python logging_application.py LOG NAME
"""

import sys

from hindcast import EpisodeWriter


def main() -> None:
    log, name = sys.argv[1:]
    writer = EpisodeWriter(log, file_bytes=2_000)  # which are 15 episodes
    for number in range(10**6):
        episode = writer.start_episode(f"{name}-{number}")
        for t in range(3):
            writer.log_action(episode, [float(number), float(t)], t)
            print(f"{episode} {t}", flush=True)  # one write, which a kill does not cut
        writer.end_episode(episode, [float(number), 3.0])


if __name__ == "__main__":
    main()
