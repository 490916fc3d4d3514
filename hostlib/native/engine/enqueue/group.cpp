#include "enqueue/group.h"

#include <time.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "enqueue/observer.h"

namespace ringstep {
namespace {

std::uint64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1000000000u +
           static_cast<std::uint64_t>(now.tv_nsec);
}

// The profiler's events around one communicator's part of a group.
struct Member {
    re_comm* comm;
    void* api_event = nullptr;
};

struct Group {
    int depth = 0;
    std::vector<Task> tasks;
    std::vector<Member> members;
    std::optional<Error> error;
};

thread_local Group group;

const Profiler* told(const re_comm& comm, int type) {
    const Profiler* profiler = comm.profiler.get();
    return profiler != nullptr && profiler->wants(type) ? profiler : nullptr;
}

Member& member_of(re_comm* comm) {
    for (Member& one : group.members) {
        if (one.comm == comm) return one;
    }
    Member made = {comm};
    if (const Profiler* profiler = told(*comm, RS_EV_GROUP_API)) {
        rs_prof_descr_v6 descr = {};
        descr.type = RS_EV_GROUP_API;
        descr.group_api.group_depth = std::max(group.depth, 1);
        made.api_event = profiler->start(descr);
    }
    group.members.push_back(made);
    return group.members.back();
}

void* start_api_event(const Task& task, void* parent) {
    const Profiler* profiler = told(*task.comm, RS_EV_COLL_API);
    if (profiler == nullptr) return nullptr;
    rs_prof_descr_v6 descr = {};
    descr.type = RS_EV_COLL_API;
    descr.parent = parent;
    descr.coll_api.func = name_of(task.coll);
    descr.coll_api.count = task.count;
    descr.coll_api.datatype = name_of(task.type);
    descr.coll_api.root = task.root;
    return profiler->start(descr);
}

// Ends the events of the calls; the thread's group is empty afterwards.
struct Closing {
    Group ended;
    ~Closing() {
        for (const Task& task : ended.tasks) {
            if (task.api_event != nullptr) task.comm->profiler->stop(task.api_event);
        }
        for (const Member& one : ended.members) {
            if (one.api_event != nullptr) one.comm->profiler->stop(one.api_event);
        }
    }
};

// A collective that is being run.
struct Launched {
    Planned planned;
    Observer observer;
};

void* start_coll_event(re_comm& comm, const Planned& planned, void* group_event) {
    const Task& task = planned.task;
    const std::uint64_t number = comm.launched[static_cast<std::size_t>(task.coll)]++;
    const Profiler* profiler = told(comm, RS_EV_COLL);
    if (profiler == nullptr) return nullptr;
    rs_prof_descr_v6 descr = {};
    descr.type = RS_EV_COLL;
    descr.parent = task.api_event;
    descr.coll.parent_group = group_event;
    rs_prof_coll_v4& coll = descr.coll.base;
    coll.seq_number = number;
    coll.func = name_of(task.coll);
    coll.send_buff = task.send;
    coll.recv_buff = task.recv;
    coll.count = task.count;
    coll.root = task.root;
    coll.datatype = name_of(task.type);
    coll.n_channels = static_cast<std::uint8_t>(planned.n_channels);
    coll.n_warps = 1;
    coll.algo = name_of(planned.algo);
    coll.proto = name_of(planned.proto);
    void* handle = profiler->start(descr);
    profiler->stop(handle);  // at the launch; its channels end it
    return handle;
}

void* start_group_event(const re_comm& comm) {
    const Profiler* profiler = told(comm, RS_EV_GROUP);
    if (profiler == nullptr) return nullptr;
    rs_prof_descr_v6 descr = {};
    descr.type = RS_EV_GROUP;
    return profiler->start(descr);
}

Work work_of(Launched& one) {
    const Planned& planned = one.planned;
    const Task& task = planned.task;
    Work work;
    work.comm = task.comm->connections.get();
    work.coll = task.coll;
    work.algo = planned.algo;
    work.proto = planned.proto;
    work.n_channels = planned.n_channels;
    work.chunk_bytes = planned.chunk_bytes;
    work.type = task.type;
    work.op = task.op;
    work.send = task.send;
    work.recv = task.recv;
    work.count = task.count;
    work.root = task.root;
    work.observer = &one.observer;
    return work;
}

void note_last(const Launched& one) {
    const Planned& planned = one.planned;
    re_comm& comm = *planned.task.comm;
    comm.last = {planned.task.coll,   planned.algo,
                 planned.proto,       planned.n_channels,
                 planned.chunk_bytes, planned.task.bytes,
                 one.observer.nanoseconds(), planned.decided};
    comm.has_run = true;
}

void launch(std::vector<std::vector<Planned>>& plans) {
    std::deque<Launched> launched;  // observers stay where they are
    std::vector<std::pair<const Profiler*, void*>> groups;
    std::vector<Work> works;
    // The last that may fail without a trace: from here on plugins count what is launched.
    for (std::vector<Planned>& of_one : plans) {
        for (Planned& planned : of_one) decide_chunk(planned);
    }
    for (std::vector<Planned>& of_one : plans) {
        re_comm& comm = *of_one.front().task.comm;
        void* group_event = start_group_event(comm);
        groups.emplace_back(comm.profiler.get(), group_event);
        for (const Planned& planned : of_one) {
            void* event = start_coll_event(comm, planned, group_event);
            launched.push_back({planned, Observer(comm.profiler.get(), event, planned.n_channels,
                                                  planned.chunk_bytes)});
            works.push_back(work_of(launched.back()));
        }
    }
    const auto close = [&] {
        const std::uint64_t now = now_ns();
        for (Launched& one : launched) one.observer.finish(now);
        for (const auto& [profiler, event] : groups) {
            if (event != nullptr) profiler->stop(event);
        }
    };
    try {
        run(works);
    } catch (...) {
        close();
        throw;
    }
    close();
    for (const Launched& one : launched) note_last(one);
}

}  // namespace

void group_start() {
    ++group.depth;
}

void enqueue(Task task) {
    Member& member = member_of(task.comm);
    task.api_event = start_api_event(task, member.api_event);
    group.tasks.push_back(task);
    if (group.depth == 0) {
        group.depth = 1;
        group_end(false);
    }
}

void spoil_group(const Error& error) {
    if (group.depth > 0 && !group.error) group.error = error;
}

void forget(const re_comm* comm) {
    std::erase_if(group.tasks, [&](const Task& task) { return task.comm == comm; });
    std::erase_if(group.members, [&](const Member& one) { return one.comm == comm; });
}

void group_end(bool simulate) {
    if (group.depth == 0) {
        throw Error(RE_BAD_ARGUMENT, "no group is open: call re_group_start first");
    }
    if (--group.depth > 0) return;
    Closing closing{std::exchange(group, Group())};
    Group& ended = closing.ended;
    if (ended.error) throw *ended.error;
    std::vector<std::vector<Planned>> plans;
    for (const Member& one : ended.members) {
        std::vector<Task> tasks;
        std::copy_if(ended.tasks.begin(), ended.tasks.end(), std::back_inserter(tasks),
                     [&](const Task& task) { return task.comm == one.comm; });
        if (!tasks.empty()) plans.push_back(plan(*one.comm, tasks));
    }
    if (!simulate && !plans.empty()) launch(plans);
}

}  // namespace ringstep
