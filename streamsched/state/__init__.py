"""The fold: what is known of one cluster at one cursor, and nothing else."""
