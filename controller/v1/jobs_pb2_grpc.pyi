from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from ringstep.controller.v1 import jobs_pb2

class JobsStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    Register: grpc.aio.UnaryUnaryMultiCallable[jobs_pb2.RegisterRequest, jobs_pb2.RegisterResponse]
    Renew: grpc.aio.UnaryUnaryMultiCallable[jobs_pb2.RenewRequest, jobs_pb2.RenewResponse]
    Release: grpc.aio.UnaryUnaryMultiCallable[jobs_pb2.ReleaseRequest, jobs_pb2.ReleaseResponse]
    Get: grpc.aio.UnaryUnaryMultiCallable[jobs_pb2.GetRequest, jobs_pb2.GetResponse]
    List: grpc.aio.UnaryUnaryMultiCallable[jobs_pb2.ListRequest, jobs_pb2.ListResponse]
    Watch: grpc.aio.UnaryStreamMultiCallable[jobs_pb2.WatchRequest, jobs_pb2.JobEvent]
    UpdateParameters: grpc.aio.UnaryUnaryMultiCallable[jobs_pb2.UpdateParametersRequest, jobs_pb2.UpdateParametersResponse]
    State: grpc.aio.UnaryUnaryMultiCallable[jobs_pb2.StateRequest, jobs_pb2.StateResponse]
    Plan: grpc.aio.UnaryUnaryMultiCallable[jobs_pb2.PlanRequest, jobs_pb2.PlanResponse]
    Rebalance: grpc.aio.UnaryUnaryMultiCallable[jobs_pb2.RebalanceRequest, jobs_pb2.RebalanceResponse]

class JobsServicer:
    async def Register(
        self, request: jobs_pb2.RegisterRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> jobs_pb2.RegisterResponse: ...
    async def Renew(
        self, request: jobs_pb2.RenewRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> jobs_pb2.RenewResponse: ...
    async def Release(
        self, request: jobs_pb2.ReleaseRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> jobs_pb2.ReleaseResponse: ...
    async def Get(
        self, request: jobs_pb2.GetRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> jobs_pb2.GetResponse: ...
    async def List(
        self, request: jobs_pb2.ListRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> jobs_pb2.ListResponse: ...
    def Watch(
        self, request: jobs_pb2.WatchRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[jobs_pb2.JobEvent]: ...
    async def UpdateParameters(
        self, request: jobs_pb2.UpdateParametersRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> jobs_pb2.UpdateParametersResponse: ...
    async def State(
        self, request: jobs_pb2.StateRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> jobs_pb2.StateResponse: ...
    async def Plan(
        self, request: jobs_pb2.PlanRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> jobs_pb2.PlanResponse: ...
    async def Rebalance(
        self, request: jobs_pb2.RebalanceRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> jobs_pb2.RebalanceResponse: ...

def add_JobsServicer_to_server(
    servicer: JobsServicer, server: grpc.aio.Server
) -> None: ...
