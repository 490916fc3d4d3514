from typing import Any

import grpc.aio

from ringstep.controller.v1 import jobs_pb2

class JobsStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    Register: grpc.aio.UnaryUnaryMultiCallable[jobs_pb2.RegisterRequest, jobs_pb2.RegisterResponse]
    Release: grpc.aio.UnaryUnaryMultiCallable[jobs_pb2.ReleaseRequest, jobs_pb2.ReleaseResponse]
    Renew: grpc.aio.UnaryUnaryMultiCallable[jobs_pb2.RenewRequest, jobs_pb2.RenewResponse]
    Get: grpc.aio.UnaryUnaryMultiCallable[jobs_pb2.GetRequest, jobs_pb2.GetResponse]
    List: grpc.aio.UnaryUnaryMultiCallable[jobs_pb2.ListRequest, jobs_pb2.ListResponse]
    State: grpc.aio.UnaryUnaryMultiCallable[jobs_pb2.StateRequest, jobs_pb2.StateResponse]

class JobsServicer:
    async def Register(
        self, request: jobs_pb2.RegisterRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> jobs_pb2.RegisterResponse: ...
    async def Release(
        self, request: jobs_pb2.ReleaseRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> jobs_pb2.ReleaseResponse: ...
    async def Renew(
        self, request: jobs_pb2.RenewRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> jobs_pb2.RenewResponse: ...
    async def Get(
        self, request: jobs_pb2.GetRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> jobs_pb2.GetResponse: ...
    async def List(
        self, request: jobs_pb2.ListRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> jobs_pb2.ListResponse: ...
    async def State(
        self, request: jobs_pb2.StateRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> jobs_pb2.StateResponse: ...

def add_JobsServicer_to_server(
    servicer: JobsServicer, server: grpc.aio.Server
) -> None: ...
