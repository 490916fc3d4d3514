"""The controller: hands out Job_IDs and keeps every switch of the fabric programmed."""
