"""Applications without an environment: the log that they write, and a policy that they ask for actions."""
