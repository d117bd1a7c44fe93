"""Limits on what is read from an untrusted checkpoint; one that exceeds them is refused."""

MAX_OPERATIONS = 1_000_000  # operations of a pickle; a vocabulary of 250,000 words takes 500,000, a tensor about 20
MAX_PICKLE = 64 << 20  # bytes of the pickle in an archive
MAX_DIRECTORY = 10 << 20  # bytes of the directory of an archive
MAX_JSON = 32 << 20  # bytes of the index of a sharded checkpoint, or of the header of a safetensors file
MAX_CONTAINERS = 1_000_000  # lists and mappings in either of these
MAX_TENSORS = 100_000  # tensors in a safetensors file
