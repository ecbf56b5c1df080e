"""How files hold data: those that are written and opened, and those of others that are read."""
