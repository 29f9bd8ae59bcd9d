"""What is computed: attention, transformer, graph networks. Knows no device, no mesh and no padding of shares."""
