"""`python -m hindcast.run.cluster FOLDER`: the entrypoint that operators write into RayJobs.

RayJobs outlive operators, and an operator must work with the previous version of the runtime, which has no
`hindcast.cluster`. Once every supported runtime has it, operators can start `hindcast.cluster`, and one version later
this module can be removed.
"""

import sys

from hindcast.cluster.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
