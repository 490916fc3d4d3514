from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from ringstep.controller.v1 import switches_pb2

class SwitchesStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    Add: grpc.aio.UnaryUnaryMultiCallable[switches_pb2.AddSwitchRequest, switches_pb2.AddSwitchResponse]
    Remove: grpc.aio.UnaryUnaryMultiCallable[switches_pb2.RemoveSwitchRequest, switches_pb2.RemoveSwitchResponse]
    List: grpc.aio.UnaryUnaryMultiCallable[switches_pb2.ListSwitchesRequest, switches_pb2.ListSwitchesResponse]
    Drain: grpc.aio.UnaryUnaryMultiCallable[switches_pb2.DrainRequest, switches_pb2.DrainResponse]
    SetLink: grpc.aio.UnaryUnaryMultiCallable[switches_pb2.SetLinkRequest, switches_pb2.SetLinkResponse]
    ReloadTopology: grpc.aio.UnaryUnaryMultiCallable[switches_pb2.ReloadTopologyRequest, switches_pb2.ReloadTopologyResponse]
    Watch: grpc.aio.UnaryStreamMultiCallable[switches_pb2.WatchSwitchesRequest, switches_pb2.SwitchEvent]

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
    async def Drain(
        self, request: switches_pb2.DrainRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> switches_pb2.DrainResponse: ...
    async def SetLink(
        self, request: switches_pb2.SetLinkRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> switches_pb2.SetLinkResponse: ...
    async def ReloadTopology(
        self, request: switches_pb2.ReloadTopologyRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> switches_pb2.ReloadTopologyResponse: ...
    def Watch(
        self, request: switches_pb2.WatchSwitchesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[switches_pb2.SwitchEvent]: ...

def add_SwitchesServicer_to_server(
    servicer: SwitchesServicer, server: grpc.aio.Server
) -> None: ...
