"""A world to decide in: demand, a virtual cluster, and the loop between them and the scheduler."""
