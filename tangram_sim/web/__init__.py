"""`tangram web`: a local web page with forms for the verbs; each request runs in a process of its own."""
