<<<<<<< HEAD
"""Bandwidth tests: started, read, ended, kept."""
=======
"""Bandwidth tests: which there are on a node, how they are run and ended, and what they measured."""
>>>>>>> processes
