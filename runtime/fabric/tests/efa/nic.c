// The NIC: it takes requests from the send queues, copies bytes and writes completions. See nic.h.
#include "nic.h"
#include <time.h>
#define FIELD(value, mask) (((value) & (mask)) / ((mask) & -(mask)))
#define IN_FIELD(value, mask) ((value) * ((mask) & -(mask)))

enum { PART = 8192, MOST_IN_FLIGHT = 1 << 16 };
static const uint64_t UNRESPONSIVE_NS = 300000000ull; // The time after which a lost peer is reported.
static const uint64_t NOT_READY_NS = 2000000000ull;   // The time after which a peer without a receive is reported.

struct request { int from; uint64_t born, due; struct efa_io_tx_wqe entry; };

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
struct completion_queue cqs[OBJECTS];
struct queue_pair qps[OBJECTS];
struct memory mrs[OBJECTS];
struct address ahs[OBJECTS];
static struct request flying[MOST_IN_FLIGHT];
static int flying_count;
static uint64_t random_state = 88172645463325252ull, longest_delay;

static uint64_t random_number(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

void gid_of(int device, uint8_t *gid) {
    memset(gid, 0, 16);
    gid[0] = 0xfe, gid[1] = 0x80, gid[8] = 2, gid[15] = device + 1;
}

int address_of(int device, const uint8_t *gid) {
    for (int index = 1; index < OBJECTS; index++)
        if (ahs[index].used && ahs[index].device == device && !memcmp(ahs[index].gid, gid, 16))
            return index;
    return NO_ADDRESS;
}

static void complete(int cq, int sub, struct efa_io_rx_cdesc_ex entry) {
    struct completion_queue *queue = &cqs[cq];
    uint32_t count = queue->produced[sub]++;
    struct efa_io_rx_cdesc_ex *ring = (void *)queue->ring.at;
    struct efa_io_rx_cdesc_ex *slot = &ring[sub * queue->entries + count % queue->entries];
    uint8_t flags = entry.base.common.flags | ((count / queue->entries) % 2 ? 0 : EFA_IO_CDESC_COMMON_PHASE_MASK);
    entry.base.common.flags = slot->base.common.flags; // The phase has to be written last.
    *slot = entry;
    __atomic_store_n(&slot->base.common.flags, flags, __ATOMIC_RELEASE);
}

static void *translate(uint32_t key, uint64_t address, uint64_t bytes, uint32_t access) {
    struct memory *memory = key < OBJECTS ? &mrs[key] : NULL;
    if (!memory || !memory->used || address < memory->device_address || (memory->access & access) != access ||
        address + bytes > memory->device_address + memory->bytes)
        return NULL;
    return (void *)(memory->address + (address - memory->device_address));
}

static struct queue_pair *destination(struct efa_io_tx_meta_desc *meta) {
    for (struct queue_pair *pair = qps + 1; pair < qps + OBJECTS; pair++) {
        uint8_t gid[16];
        gid_of(pair->device, gid);
        if (pair->used && pair->number == meta->dest_qp_num && !memcmp(gid, ahs[meta->ah].gid, 16))
            return pair->state < IBV_QPS_RTR || pair->state == IBV_QPS_ERR || pair->key != meta->qkey ? NULL : pair;
    }
    return NULL;
}

static uint64_t address_in(uint32_t low, uint32_t high) { return low | (uint64_t)high << 32; }

static void copy(struct efa_io_rdma_req *rdma, char *to, char *from) {
    for (uint64_t left = rdma->remote_mem.length; left;) {
        uint64_t part = left % PART ? left % PART : PART;
        left -= part;
        memcpy(to + left, from + left, part);
    }
}

// Writes the receiver's completion. Returns false if it has no receive.
static int arrive(struct queue_pair *to, struct request *request) {
    struct efa_io_tx_meta_desc *meta = &request->entry.meta;
    uint32_t bytes = request->entry.data.rdma_req.remote_mem.length;
    struct efa_io_rx_cdesc_ex entry = { 0 };
    entry.base.common.flags = IN_FIELD(EFA_IO_RECV_QUEUE, EFA_IO_CDESC_COMMON_Q_TYPE_MASK) |
                              IN_FIELD(EFA_IO_RDMA_WRITE, EFA_IO_CDESC_COMMON_OP_TYPE_MASK) | EFA_IO_CDESC_COMMON_HAS_IMM_MASK;
    if (to->unsolicited) {
        entry.base.common.flags |= EFA_IO_CDESC_COMMON_UNSOLICITED_MASK;
    } else {
        if (to->received == *(volatile uint16_t *)(to->doorbells.at + RECEIVE_DOORBELL))
            return 0;
        entry.base.common.req_id = ((struct efa_io_rx_desc *)to->receive_ring.at)[to->received++ % to->receives].req_id;
    }
    uint8_t sender[16];
    gid_of(qps[request->from].device, sender);
    entry.base.common.qp_num = to->number;
    entry.base.length = bytes, entry.u.rdma_write.length_hi = bytes >> 16;
    entry.base.ah = address_of(to->device, sender), entry.base.src_qp_num = qps[request->from].number, entry.base.imm = meta->immediate_data;
    complete(to->receive_cq, 1, entry);
    return 1;
}

// Executes a request. Returns false if it has to wait.
static int carry_out(struct request *request, uint64_t time) {
    struct queue_pair *from = &qps[request->from];
    struct efa_io_tx_meta_desc *meta = &request->entry.meta;
    struct efa_io_rdma_req *rdma = &request->entry.data.rdma_req;
    struct efa_io_tx_buf_desc *local = &rdma->local_mem[0];
    int status = EFA_IO_COMP_STATUS_OK;
    struct queue_pair *to = destination(meta);
    uint32_t bytes = rdma->remote_mem.length;
    char *source = translate(local->lkey, address_in(local->buf_addr_lo, local->buf_addr_hi), bytes, 0);
    int kind = FIELD(meta->ctrl1, EFA_IO_TX_META_DESC_OP_TYPE_MASK), reads = kind == EFA_IO_RDMA_READ;
    char *target = translate(rdma->remote_mem.rkey, address_in(rdma->remote_mem.buf_addr_lo, rdma->remote_mem.buf_addr_hi),
                             bytes, reads ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE);
    if (!reads && (kind != EFA_IO_RDMA_WRITE || !(meta->ctrl1 & EFA_IO_TX_META_DESC_HAS_IMM_MASK))) {
        status = EFA_IO_COMP_STATUS_LOCAL_ERROR_UNSUPPORTED_OP;
    } else if (!to) {
        if (time - request->born < UNRESPONSIVE_NS)
            return 0;
        status = EFA_IO_COMP_STATUS_LOCAL_ERROR_UNRESP_REMOTE;
    } else if (!source || local->length != bytes) {
        status = EFA_IO_COMP_STATUS_LOCAL_ERROR_INVALID_LKEY;
    } else if (!target) {
        status = EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_ADDRESS;
    } else if (reads) {
        copy(rdma, source, target);
    } else {
        copy(rdma, target, source);
        if (!arrive(to, request)) {
            if (time - request->born < NOT_READY_NS)
                return 0;
            status = EFA_IO_COMP_STATUS_REMOTE_ERROR_RNR;
        }
    }
    struct efa_io_rx_cdesc_ex entry = { 0 };
    entry.base.common.req_id = meta->req_id, entry.base.common.status = status, entry.base.common.qp_num = from->number;
    entry.base.common.flags = IN_FIELD(EFA_IO_SEND_QUEUE, EFA_IO_CDESC_COMMON_Q_TYPE_MASK) |
                              IN_FIELD(kind, EFA_IO_CDESC_COMMON_OP_TYPE_MASK);
    complete(from->send_cq, 0, entry);
    return 1;
}

static void fetch(int index, uint64_t time) {
    struct queue_pair *pair = &qps[index];
    uint16_t posted = pair->used ? __atomic_load_n((uint16_t *)pair->doorbells.at, __ATOMIC_ACQUIRE) : 0;
    for (; pair->used && pair->fetched != posted && flying_count < MOST_IN_FLIGHT; pair->fetched++) {
        uint64_t delay = longest_delay ? random_number() % longest_delay : 0;
        struct efa_io_tx_wqe *ring = (void *)pair->send_ring.at;
        flying[flying_count++] = (struct request){ index, time, time + delay, ring[pair->fetched % pair->writes] };
    }
}

static void *run(void *nothing) {
    for (;;) {
        pthread_mutex_lock(&lock);
        uint64_t time = now();
        for (int index = 1; index < OBJECTS; index++)
            fetch(index, time);
        for (int tries = flying_count; tries && flying_count; tries--) {
            int index = random_number() % flying_count;
            if (flying[index].due <= time && carry_out(&flying[index], time))
                flying[index] = flying[--flying_count];
        }
        pthread_mutex_unlock(&lock);
        usleep(20);
    }
    return nothing;
}

void start_nic(uint64_t seed, uint64_t longest_delay_ns) {
    pthread_t thread;
    random_state ^= seed * 0x9e3779b97f4a7c15ull;
    longest_delay = longest_delay_ns;
    if (pthread_create(&thread, NULL, run, NULL))
        abort();
}

void forget_requests(int qp) {
    for (int index = flying_count; index--;)
        if (flying[index].from == qp)
            flying[index] = flying[--flying_count];
}
