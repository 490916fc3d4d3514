from typing import Any

import grpc.aio

from ringstep.controller.v1 import switches_pb2

class SwitchesStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    Add: grpc.aio.UnaryUnaryMultiCallable[switches_pb2.AddSwitchRequest, switches_pb2.AddSwitchResponse]
    Remove: grpc.aio.UnaryUnaryMultiCallable[switches_pb2.RemoveSwitchRequest, switches_pb2.RemoveSwitchResponse]
    List: grpc.aio.UnaryUnaryMultiCallable[switches_pb2.ListSwitchesRequest, switches_pb2.ListSwitchesResponse]

class SwitchesServicer:
    async def Add(
        self, request: switches_pb2.AddSwitchRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> switches_pb2.AddSwitchResponse: ...
    async def Remove(
        self, request: switches_pb2.RemoveSwitchRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> switches_pb2.RemoveSwitchResponse: ...
    async def List(
        self, request: switches_pb2.ListSwitchesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> switches_pb2.ListSwitchesResponse: ...

def add_SwitchesServicer_to_server(
    servicer: SwitchesServicer, server: grpc.aio.Server
) -> None: ...
