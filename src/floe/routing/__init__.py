"""Which adapters answer, in which shares."""
