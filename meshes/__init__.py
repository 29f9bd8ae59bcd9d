"""Devices that are not equal, and how much of the work each of them gets. NumPy only, `mesh.py` apart."""
