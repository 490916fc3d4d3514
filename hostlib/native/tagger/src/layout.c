/* The arithmetic of ringstep.protocol.tag. */
#include <errno.h>

#include "ringstep_tag.h"
#include "text.h"

static int is_layout(rt_layout layout) {
    return layout.step_bits >= 2 && layout.step_bits <= RT_TAG_BITS &&
           layout.job_bits == RT_TAG_BITS - layout.step_bits;
}

static uint32_t step_mask(rt_layout layout) { return (UINT32_C(1) << layout.step_bits) - 1; }

int rt_layout_check(rt_layout layout) {
    if (!is_layout(layout)) {
        return rt_fail(EINVAL,
                       "tag layout J=%u, S=%u: S must be 2 to %d, and J + S must be %d, the bits "
                       "below 0xC000",
                       layout.job_bits, layout.step_bits, RT_TAG_BITS, RT_TAG_BITS);
    }
    return 0;
}

uint16_t rt_sport(rt_layout layout, uint32_t job_tag, uint64_t step) {
    if (!is_layout(layout) || job_tag >> layout.job_bits) {
        return 0;
    }
    return (uint16_t)(RT_SPORT_BASE | job_tag << layout.step_bits |
                      ((uint32_t)step & step_mask(layout)));
}

uint32_t rt_flow_label(rt_layout layout, uint32_t job_tag, uint64_t step) {
    uint16_t sport = rt_sport(layout, job_tag, step);
    if (sport == 0) {
        return 0;
    }
    /* port = 0xC000 | (lower 14 bits of the label XOR upper 6); tag 0 by 1 XOR 1. */
    uint32_t tag = sport & (RT_SPORT_BASE ^ 0xFFFFu);
    return tag ? tag : UINT32_C(1) << RT_TAG_BITS | 1;
}

uint32_t rt_step_of(rt_layout layout, uint16_t sport) {
    return is_layout(layout) ? sport & step_mask(layout) : 0;
}

uint32_t rt_job_tag_of(rt_layout layout, uint16_t sport) {
    return is_layout(layout) ? (sport & (RT_SPORT_BASE ^ 0xFFFFu)) >> layout.step_bits : 0;
}

int rt_ahead(rt_layout layout, uint64_t a, uint64_t b) {
    if (!is_layout(layout)) {
        return 0;
    }
    uint32_t difference = (uint32_t)(a - b) & step_mask(layout);
    return difference != 0 && difference < UINT32_C(1) << (layout.step_bits - 1);
}

uint32_t rt_max_skew(rt_layout layout) {
    return is_layout(layout) ? (UINT32_C(1) << (layout.step_bits - 1)) - 1 : 0;
}

uint32_t rt_wraps_after(rt_layout layout) {
    return is_layout(layout) ? UINT32_C(1) << layout.step_bits : 0;
}

int rt_pool_layout(uint32_t k, rt_layout* layout) {
    if (layout == NULL) {
        return rt_fail(EINVAL, "no place for the layout was given");
    }
    if (k < 4 || (k & (k - 1)) || k > UINT32_C(1) << RT_TAG_BITS) {
        return rt_fail(EINVAL, "a pool of k = %u queue pairs: k must be a power of two from 4 to %u",
                       k, 1u << RT_TAG_BITS);
    }
    uint32_t bits = 0;
    while (k >> (bits + 1)) {
        bits++;
    }
    layout->job_bits = RT_TAG_BITS - bits;
    layout->step_bits = bits;
    return 0;
}

uint32_t rt_pool_index(uint32_t k, uint64_t step) { return k ? (uint32_t)(step % k) : 0; }
