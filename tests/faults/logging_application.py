"""An application that logs short episodes and prints each logged step as `<episode> <t>`.

python logging_application.py LOG NAME
"""

import sys

from hindcast import EpisodeWriter


def main() -> None:
    log, name = sys.argv[1:]
    writer = EpisodeWriter(log, file_bytes=2_000)  # 15 episodes
    for index in range(10**6):
        episode = writer.start_episode(f"{name}-{index}")
        for t in range(3):
            writer.log_action(episode, [float(index), float(t)], t)
            print(f"{episode} {t}", flush=True)  # one write, so that a kill does not cut the line
        writer.end_episode(episode, [float(index), 3.0])


if __name__ == "__main__":
    main()
