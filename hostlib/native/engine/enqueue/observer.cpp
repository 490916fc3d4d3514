#include "enqueue/observer.h"

#include <unistd.h>

#include <algorithm>

namespace ringstep {
namespace {

const Profiler* if_wanted(const Profiler* profiler, int type) {
    return profiler != nullptr && profiler->wants(type) ? profiler : nullptr;
}

}  // namespace

Observer::Observer(const Profiler* profiler, void* coll, int n_channels, std::size_t chunk_bytes)
    : steps_(if_wanted(profiler, RS_EV_PROXY_STEP)),
      kernels_(if_wanted(profiler, RS_EV_KERNEL_CH)),
      ops_(if_wanted(profiler, RS_EV_PROXY_OP)),
      coll_(coll),
      n_channels_(std::min(n_channels, kMaxChannels)),
      chunk_bytes_(chunk_bytes) {
    if (ops_ != nullptr) operations_.reserve(static_cast<std::size_t>(n_channels_) * 3);
}

void Observer::channel_started(int channel, std::uint64_t now_ns) {
    if (first_ns_ == 0 || now_ns < first_ns_) first_ns_ = now_ns;
    if (channel < 0 || channel >= kMaxChannels) return;
    Kernel& kernel = channels_[static_cast<std::size_t>(channel)];
    if (kernel.started) return;
    kernel.started = true;
    if (kernels_ == nullptr) return;
    rs_prof_descr_v6 descr = {};
    descr.type = RS_EV_KERNEL_CH;
    descr.parent = coll_;
    descr.kernel_ch.channel_id = static_cast<std::uint8_t>(channel);
    descr.kernel_ch.p_timer = now_ns;
    kernel.handle = kernels_->start(descr);
}

void Observer::channel_stopped(int channel, std::uint64_t now_ns) {
    last_ns_ = std::max(last_ns_, now_ns);
    if (channel < 0 || channel >= kMaxChannels) return;
    Kernel& kernel = channels_[static_cast<std::size_t>(channel)];
    if (!kernel.started || kernel.stopped) return;
    kernel.stopped = true;
    if (kernels_ == nullptr) return;
    kernels_->record(kernel.handle, RS_STATE_KERNEL_CH_STOP, now_ns);
    kernels_->stop(kernel.handle);
}

Observer::Operation& Observer::operation(int channel, int peer) {
    for (Operation& op : operations_) {
        if (op.channel == channel && op.peer == peer) return op;
    }
    rs_prof_descr_v6 descr = {};
    descr.type = RS_EV_PROXY_OP;
    descr.parent = coll_;
    descr.proxy_op.pid = static_cast<std::int32_t>(getpid());
    descr.proxy_op.channel_id = static_cast<std::uint8_t>(channel);
    descr.proxy_op.peer = peer;
    descr.proxy_op.chunk_size = static_cast<int>(chunk_bytes_);
    descr.proxy_op.is_send = 1;
    operations_.push_back({channel, peer, ops_->start(descr), {}});
    return operations_.back();
}

// The step's event, begun where it is not open: its data are ready, the peer is asked.
Observer::Step& Observer::open_step(Operation& op, std::uint64_t step) {
    for (Step& one : op.open) {
        if (one.step == step) return one;
    }
    rs_prof_descr_v6 descr = {};
    descr.type = RS_EV_PROXY_STEP;
    descr.parent = op.handle;
    descr.proxy_step = static_cast<int>(step);
    void* handle = steps_->start(descr);
    steps_->record(handle, RS_STATE_SEND_GPU_WAIT);
    steps_->record(handle, RS_STATE_SEND_PEER_WAIT);
    op.open.push_back({step, handle});
    return op.open.back();
}

void Observer::send_started(int channel, int peer, std::uint64_t step) {
    if (ops_ == nullptr) return;
    Operation& op = operation(channel, peer);
    if (steps_ != nullptr) open_step(op, step);
}

// One more attempt without success: what PReCCL counts as a stall.
void Observer::send_blocked(int channel, int peer, std::uint64_t step) {
    if (ops_ == nullptr) return;
    Operation& op = operation(channel, peer);
    if (steps_ != nullptr) steps_->record(open_step(op, step).handle, RS_STATE_SEND_PEER_WAIT);
}

void Observer::send_finished(int channel, int peer, std::uint64_t step) {
    if (steps_ == nullptr) return;
    Operation& op = operation(channel, peer);
    const Step done = open_step(op, step);
    steps_->record(done.handle, RS_STATE_SEND_WAIT);
    steps_->stop(done.handle);
    const auto same = [&](const Step& one) { return one.step == step; };
    op.open.erase(std::find_if(op.open.begin(), op.open.end(), same));
}

void Observer::finish(std::uint64_t now_ns) {
    if (last_ns_ == 0) last_ns_ = now_ns;
    for (Operation& op : operations_) {
        for (const Step& step : op.open) steps_->stop(step.handle);
        ops_->stop(op.handle);
    }
    operations_.clear();
    // A channel that had nothing to carry still is one of those that the collective was given.
    for (int c = 0; c < n_channels_; ++c) {
        channel_started(c, last_ns_);
        channel_stopped(c, last_ns_);
    }
}

}  // namespace ringstep
