"""Public fakes and conformance lists: no test of logic needs a model, a GPU or a network."""
