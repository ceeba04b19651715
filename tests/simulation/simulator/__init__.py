"""A cluster in one process, on virtual time: the real cores and drivers, their ports replaced."""
