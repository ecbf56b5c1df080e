"""Support for applications without an environment: a log of their episodes, and a policy that serves actions."""
