"""Reports: answers as one self-contained HTML page in which every number names its source."""
