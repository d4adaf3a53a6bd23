"""Time and memory of packed networks beside other runtimes."""
