"""`tangram web`: a local web page with forms for the commands; each request runs in its own process."""
