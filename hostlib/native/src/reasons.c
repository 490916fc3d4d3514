/* Why a decision was not applied, in words. */
#include "core.h"

static const char* const TEXT[RS_WHY_COUNT] = {
    [RS_WHY_NO_FILE] =
        "no shared-memory file for this job: start the coordinator before the "
        "ranks, or check RINGSTEP_SHM_DIR and RINGSTEP_JOB",
    [RS_WHY_BAD_FILE] =
        "the shared-memory file cannot be used (another layout version, truncated, "
        "without storage, not ours or not writable): remove it and start the "
        "coordinator of this version",
    [RS_WHY_STALE_FILE] =
        "the shared-memory file belongs to another run of the job: its owner is "
        "gone or its token is not RINGSTEP_SHM_TOKEN",
    [RS_WHY_NO_ROOM] =
        "no free place in the shared-memory file (64 communicators, ranks each, processes)",
    [RS_WHY_NO_RANK] =
        "the rank is unknown: load the same library as NCCL_PROFILER_PLUGIN "
        "(profiler ABI v4 or later)",
    [RS_WHY_NO_CLOCK] =
        "collectives cannot be counted alike on all ranks: profiler ABI v5 (NCCL 2.28) is needed, "
        "CUDA_LAUNCH_BLOCKING must be unset, and no event may be missing",
    [RS_WHY_CAPTURED] =
        "CUDA graphs are captured: the decisions in force stay, new ones are not "
        "taken over (use fences)",
    [RS_WHY_NULL_ARGUMENT] = "NCCL passed no cost table",
    [RS_WHY_UNKNOWN_COLLECTIVE] = "a collective that has no decisions",
    [RS_WHY_BAD_ENTRY] = "the table holds an algorithm, a protocol or flags that no NCCL has",
    [RS_WHY_NOT_FOR_COLLECTIVE] = "Tree is for AllReduce only",
    [RS_WHY_OUT_OF_TABLE] = "this NCCL does not know the wanted algorithm or protocol",
    [RS_WHY_ENTRY_IGNORED] =
        "NCCL does not offer the wanted algorithm and protocol here "
        "(NCCL_ALGO, NCCL_PROTO or the topology exclude it)",
    [RS_WHY_NOT_USABLE_EVERYWHERE] =
        "the table names an algorithm and protocol that this rank has "
        "not seen usable: choose from what every rank reports",
    [RS_WHY_BAD_DIGEST] = "a table's digest does not fit its bytes",
    [RS_WHY_UNKNOWN_EPOCH] = "the epoch in force is none that this rank acknowledged",
    [RS_WHY_STATIC_DIFFERS] =
        "the static table was not the same on all ranks when the "
        "communicator was made",
    [RS_WHY_CHANNELS_CLAMPED] = "the wanted number of channels was clamped",
    [RS_WHY_CHUNK_CLAMPED] =
        "the wanted chunk size was clamped (16 KiB to 64 MiB, multiples of 4 KiB)",
    [RS_WHY_THREADS_NOT_SET] = "threads per block were wanted; no tuner can set them",
    [RS_WHY_BUSY] =
        "another process held the shared-memory file's lock too long, or a new file "
        "took its place while communicators use the old one",
};

const char* rs_reason_text(uint32_t reason) {
    return reason < RS_WHY_COUNT && TEXT[reason] ? TEXT[reason] : "unknown reason";
}
