"""Files on local disks, in object stores, and in file systems of users; leases, caches and errors of storage."""
