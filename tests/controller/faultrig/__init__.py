"""What a run against a controller as a black box is made of.

Processes (controller, software switches, PostgreSQL), faults that are done to them, clients that
write down what they were promised, and a judge that holds List and every switch against it. Nothing
here uses the controller's own code beyond the messages of its API, so that a mistake there is not
made here too.
"""
