"""The logs of found runs, each read once: by several processes, and from a cache where
they have not changed."""
