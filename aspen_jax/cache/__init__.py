"""What is kept on disk between processes.

Knows nothing of the other rooms. Begin at `disk_cache.py`.
"""
