"""`python -m hindcast.run.cluster FOLDER`: the entrypoint of RayJobs, which stays as long as operators write it.

RayJobs live longer than an operator, and an operator must work with the runtime of the version before, which has no
`hindcast.cluster`. Once no supported runtime is without it, the operator may start that, and a version later this goes.
"""

import sys

from hindcast.cluster.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
