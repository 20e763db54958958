"""The lane engine: all endpoints of one vector, driven as one."""
