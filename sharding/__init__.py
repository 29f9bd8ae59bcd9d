"""How a share becomes local arrays, local work and messages between devices."""
