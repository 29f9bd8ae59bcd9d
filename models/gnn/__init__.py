"""Graph networks: views of edges, and models that read nothing else of a graph."""
