// EFA devices in software, below the real libibverbs and libefa: a library for LD_PRELOAD. It answers what libibverbs
// asks the kernel (sysfs, /dev/infiniband/uverbsN, commands by write(), mmap) and does what the NIC does with the queues
// that libefa maps. All endpoints are of one process. Built against the headers of rdma-core 55.
//
// Devices 0 to 3 can all; 4 and 5 need a receive for each arrival; 6 cannot write to memory of peers.
// As on the wire of SRD, requests are carried out in random order, and the parts of one from the last to the first.
// NIC_SEED: of that order. NIC_DELAY_US: the longest time that a request takes.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/efadv.h>
#include <pthread.h>
#include <rdma/efa-abi.h>
#include <rdma/ib_user_verbs.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#define BIT(bit) (1u << (bit))
#define GENMASK(high, low) ((~0u << (low)) & (~0u >> (31 - (high))))
#include "efa_io_defs.h"
#define FIELD(value, mask) (((value) & (mask)) / ((mask) & -(mask)))
#define IN_FIELD(value, mask) ((value) * ((mask) & -(mask)))

// What src/verbs/efadv.rs declares.
_Static_assert(sizeof(struct efadv_device_attr) == 32 && sizeof(struct efadv_qp_init_attr) == 16, "sizes");
_Static_assert(offsetof(struct efadv_device_attr, device_caps) == 24 && offsetof(struct efadv_qp_init_attr, flags) == 12, "offsets");
_Static_assert(EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE == 1 << 3 && EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV == 1 << 4, "values");
_Static_assert(EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV == 1 && EFADV_QP_DRIVER_TYPE_SRD == 0, "values");

enum { DEVICES = 7, OBJECTS = 1024, FILES = 4096, PAGE = 4096, PART = 8192, MOST_IN_FLIGHT = 1 << 16 };
enum { RECEIVE_DOORBELL = 2048 };                     // in a queue pair's page of doorbells; the other is at 0
static const uint64_t UNRESPONSIVE_NS = 300000000ull; // until a peer that is gone is given up
static const uint64_t NOT_READY_NS = 2000000000ull;   // until one without a receive is

struct pages { int file; char *at; };
struct completion_queue { int used; uint32_t entries, produced[2]; struct pages ring; };
struct queue_pair {
    int used, device, state, unsolicited, send_cq, receive_cq;
    uint32_t key, writes, receives;
    uint16_t fetched, received;
    struct pages send_ring, receive_ring, doorbells;
};
struct memory { int used; uint64_t device_address, address, bytes; uint32_t access; };
struct address { int used; uint8_t gid[16]; };
struct request { int from; uint64_t born, due; struct efa_io_tx_wqe entry; };

static struct completion_queue cqs[OBJECTS];
static struct queue_pair qps[OBJECTS];
static struct memory mrs[OBJECTS];
static struct address ahs[OBJECTS];
static struct pages maps[FILES]; // what mmap finds at offset index * PAGE
static int map_count = 1;
static struct request flying[MOST_IN_FLIGHT];
static int flying_count;
static int device_of_file[FILES]; // device + 1
static uint64_t random_state = 88172645463325252ull, longest_delay_ns;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char sysfs[64];

#define REAL(function) ((typeof(&function))dlsym(RTLD_NEXT, #function))

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

static void gid_of(int device, uint8_t *gid) {
    memset(gid, 0, 16);
    gid[0] = 0xfe, gid[1] = 0x80, gid[8] = 2, gid[15] = device + 1;
}

// ---- the NIC ----

static void complete(int cq, int sub, struct efa_io_rx_cdesc_ex entry) {
    struct completion_queue *queue = &cqs[cq];
    uint32_t count = queue->produced[sub]++;
    struct efa_io_rx_cdesc_ex *ring = (void *)queue->ring.at;
    struct efa_io_rx_cdesc_ex *slot = &ring[sub * queue->entries + count % queue->entries];
    uint8_t flags = entry.base.common.flags | ((count / queue->entries) % 2 ? 0 : EFA_IO_CDESC_COMMON_PHASE_MASK);
    entry.base.common.flags = slot->base.common.flags; // the phase comes last
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
    struct queue_pair *pair = meta->dest_qp_num < OBJECTS ? &qps[meta->dest_qp_num] : NULL;
    uint8_t gid[16];
    if (!pair || !pair->used || pair->state < IBV_QPS_RTR || pair->state == IBV_QPS_ERR || pair->key != meta->qkey)
        return NULL;
    gid_of(pair->device, gid);
    return memcmp(gid, ahs[meta->ah].gid, 16) ? NULL : pair;
}

static uint64_t address_in(uint32_t low, uint32_t high) { return low | (uint64_t)high << 32; }

static void copy(struct efa_io_rdma_req *rdma, char *to, char *from) {
    for (uint64_t left = rdma->remote_mem.length; left;) {
        uint64_t part = left % PART ? left % PART : PART;
        left -= part;
        memcpy(to + left, from + left, part);
    }
}

// Tells the receiver; false if it has no receive.
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
    entry.base.common.qp_num = to - qps;
    entry.base.length = bytes, entry.u.rdma_write.length_hi = bytes >> 16;
    entry.base.ah = 0xffff, entry.base.src_qp_num = request->from, entry.base.imm = meta->immediate_data;
    complete(to->receive_cq, 1, entry);
    return 1;
}

// Carries out a request; false if it has to wait.
static int carry_out(struct request *request, uint64_t time) {
    struct queue_pair *from = &qps[request->from];
    struct efa_io_tx_meta_desc *meta = &request->entry.meta;
    struct efa_io_rdma_req *rdma = &request->entry.data.rdma_req;
    struct efa_io_tx_buf_desc *local = &rdma->local_mem[0];
    int status = EFA_IO_COMP_STATUS_OK;
    if (!from->used)
        return 1;
    struct queue_pair *to = destination(meta);
    uint32_t bytes = rdma->remote_mem.length;
    char *source = translate(local->lkey, address_in(local->buf_addr_lo, local->buf_addr_hi), bytes, 0);
    char *target = translate(rdma->remote_mem.rkey, address_in(rdma->remote_mem.buf_addr_lo, rdma->remote_mem.buf_addr_hi),
                             bytes, IBV_ACCESS_REMOTE_WRITE);
    if (FIELD(meta->ctrl1, EFA_IO_TX_META_DESC_OP_TYPE_MASK) != EFA_IO_RDMA_WRITE || !(meta->ctrl1 & EFA_IO_TX_META_DESC_HAS_IMM_MASK)) {
        status = EFA_IO_COMP_STATUS_LOCAL_ERROR_UNSUPPORTED_OP;
    } else if (!to) {
        if (time - request->born < UNRESPONSIVE_NS)
            return 0;
        status = EFA_IO_COMP_STATUS_LOCAL_ERROR_UNRESP_REMOTE;
    } else if (!source || local->length != bytes) {
        status = EFA_IO_COMP_STATUS_LOCAL_ERROR_INVALID_LKEY;
    } else if (!target) {
        status = EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_ADDRESS;
    } else {
        copy(rdma, target, source);
        if (!arrive(to, request)) {
            if (time - request->born < NOT_READY_NS)
                return 0;
            status = EFA_IO_COMP_STATUS_REMOTE_ERROR_RNR;
        }
    }
    struct efa_io_rx_cdesc_ex entry = { 0 };
    entry.base.common.req_id = meta->req_id, entry.base.common.status = status, entry.base.common.qp_num = request->from;
    entry.base.common.flags = IN_FIELD(EFA_IO_SEND_QUEUE, EFA_IO_CDESC_COMMON_Q_TYPE_MASK) |
                              IN_FIELD(EFA_IO_RDMA_WRITE, EFA_IO_CDESC_COMMON_OP_TYPE_MASK);
    complete(from->send_cq, 0, entry);
    return 1;
}

static void fetch(int index, uint64_t time) {
    struct queue_pair *pair = &qps[index];
    uint16_t posted = pair->used ? __atomic_load_n((uint16_t *)pair->doorbells.at, __ATOMIC_ACQUIRE) : 0;
    for (; pair->used && pair->fetched != posted && flying_count < MOST_IN_FLIGHT; pair->fetched++) {
        uint64_t delay = longest_delay_ns ? random_number() % longest_delay_ns : 0;
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

// ---- the kernel ----

static int free_slot(void *table, size_t size) { // each object starts with `used`; 0 is never given
    for (int index = 1; index < OBJECTS; index++)
        if (!*(int *)((char *)table + index * size))
            return index;
    return 0;
}

// Memory that both sides map; returns the offset at which mmap finds it.
static uint64_t share(struct pages *pages, size_t bytes) {
    bytes = (bytes + PAGE - 1) / PAGE * PAGE;
    pages->file = memfd_create("nic", MFD_CLOEXEC);
    if (map_count == FILES || pages->file < 0 || ftruncate(pages->file, bytes))
        abort();
    pages->at = REAL(mmap)(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, pages->file, 0);
    maps[map_count] = *pages;
    return (uint64_t)map_count++ * PAGE;
}

static int query_device(int device, struct ib_uverbs_query_device_resp *base) {
    *base = (struct ib_uverbs_query_device_resp){
        .max_mr_size = 1ull << 40, .page_size_cap = 0xfffff000, .max_qp = OBJECTS, .max_qp_wr = 4096, .max_sge = 1, .max_sge_rd = 1,
        .max_cq = OBJECTS, .max_cqe = 1 << 15, .max_mr = OBJECTS, .max_pd = OBJECTS, .max_ah = OBJECTS, .phys_port_cnt = 1, .max_pkeys = 1,
    };
    return 0;
}

static int query_device_ex(int device, struct ib_uverbs_ex_query_device_resp *answer, size_t bytes, void *own, size_t own_bytes) {
    struct efa_ibv_ex_query_device_resp caps = { .max_sq_wr = 2048, .max_rq_wr = 4096, .max_sq_sge = 2, .max_rq_sge = 1, .max_rdma_size = 1 << 30 };
    caps.device_caps = EFA_QUERY_DEVICE_CAPS_RNR_RETRY | (device < 6 ? EFA_QUERY_DEVICE_CAPS_RDMA_WRITE : 0) |
                       (device < 4 ? EFA_QUERY_DEVICE_CAPS_UNSOLICITED_WRITE_RECV : 0);
    memset(answer, 0, bytes);
    query_device(device, &answer->base);
    answer->response_length = bytes;
    memcpy(own, &caps, own_bytes < sizeof caps ? own_bytes : sizeof caps);
    return 0;
}

static int create_cq(const struct ib_uverbs_create_cq *ask, const struct efa_ibv_create_cq *own, struct ib_uverbs_create_cq_resp *answer,
                     struct efa_ibv_create_cq_resp *own_answer) {
    int index = free_slot(cqs, sizeof *cqs);
    if (!index || own->cq_entry_size != sizeof(struct efa_io_rx_cdesc_ex) || own->num_sub_cqs != 2)
        return EINVAL;
    struct completion_queue *queue = &cqs[index];
    *queue = (struct completion_queue){ .used = 1, .entries = ask->cqe };
    size_t bytes = 2 * ask->cqe * sizeof(struct efa_io_rx_cdesc_ex);
    own_answer->q_mmap_key = share(&queue->ring, bytes);
    own_answer->q_mmap_size = (bytes + PAGE - 1) / PAGE * PAGE, own_answer->cq_idx = index;
    answer->cq_handle = index, answer->cqe = ask->cqe;
    return 0;
}

static int create_qp(int device, const struct ib_uverbs_create_qp *ask, const struct efa_ibv_create_qp *own,
                     struct ib_uverbs_create_qp_resp *answer, struct efa_ibv_create_qp_resp *own_answer) {
    int index = free_slot(qps, sizeof *qps);
    if (!index || ask->qp_type != IBV_QPT_DRIVER)
        return EINVAL;
    struct queue_pair *pair = &qps[index];
    *pair = (struct queue_pair){ .used = 1, .device = device, .unsolicited = own->flags & EFA_CREATE_QP_WITH_UNSOLICITED_WRITE_RECV,
        .send_cq = ask->send_cq_handle, .receive_cq = ask->recv_cq_handle, .writes = own->sq_ring_size / sizeof(struct efa_io_tx_wqe),
        .receives = own->rq_ring_size / sizeof(struct efa_io_rx_desc) };
    own_answer->llq_desc_mmap_key = share(&pair->send_ring, own->sq_ring_size);
    own_answer->rq_mmap_key = share(&pair->receive_ring, own->rq_ring_size);
    own_answer->rq_mmap_size = (own->rq_ring_size + PAGE - 1) / PAGE * PAGE;
    own_answer->sq_db_mmap_key = own_answer->rq_db_mmap_key = share(&pair->doorbells, PAGE);
    own_answer->rq_db_offset = RECEIVE_DOORBELL, own_answer->recv_sub_cq_idx = 1;
    *answer = (struct ib_uverbs_create_qp_resp){ .qp_handle = index, .qpn = index, .max_send_wr = ask->max_send_wr,
        .max_recv_wr = ask->max_recv_wr, .max_send_sge = ask->max_send_sge, .max_recv_sge = ask->max_recv_sge };
    return 0;
}

static int modify_qp(const struct ib_uverbs_modify_qp *ask) {
    struct queue_pair *pair = &qps[ask->qp_handle];
    if (ask->attr_mask & IBV_QP_QKEY)
        pair->key = ask->qkey;
    if (ask->qp_state != IBV_QPS_ERR && ask->qp_state != pair->state + 1)
        return EINVAL;
    pair->state = ask->qp_state;
    return 0;
}

static int register_memory(const struct ib_uverbs_reg_mr *ask, struct ib_uverbs_reg_mr_resp *answer) {
    int index = free_slot(mrs, sizeof *mrs);
    if (!index || ask->access_flags & ~(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ))
        return EOPNOTSUPP;
    mrs[index] = (struct memory){ 1, ask->hca_va, ask->start, ask->length, ask->access_flags };
    answer->mr_handle = answer->lkey = answer->rkey = index;
    return 0;
}

static int create_ah(const struct ib_uverbs_create_ah *ask, struct ib_uverbs_create_ah_resp *answer, struct efa_ibv_create_ah_resp *own_answer) {
    int index = free_slot(ahs, sizeof *ahs);
    if (!index)
        return ENOMEM;
    ahs[index].used = 1;
    memcpy(ahs[index].gid, ask->attr.grh.dgid, 16);
    answer->ah_handle = own_answer->efa_address_handle = index;
    return 0;
}

// A command of the write() ABI: its own structure, then the driver's; answers likewise.
#define ASK(type) ((const struct type *)ask)
#define ANSWER(type) ((struct type *)answer)
#define OWN_ASK(type) ((void *)(ASK(type) + 1))
#define OWN_ANSWER(type) ((void *)(ANSWER(type) + 1))
static int command(int device, const struct ib_uverbs_cmd_hdr *header) {
    const char *ask = (const char *)(header + 1);
    char *answer = (char *)*(const uint64_t *)ask; // each that has an answer starts with its address
    static uint32_t domains;
    if (header->command & IB_USER_VERBS_CMD_FLAG_EXTENDED) {
        const struct ib_uverbs_ex_cmd_hdr *more = (const void *)ask;
        answer = (char *)more->response;
        size_t bytes = header->out_words * 8, own_bytes = more->provider_out_words * 8;
        if ((header->command & IB_USER_VERBS_CMD_COMMAND_MASK) != IB_USER_VERBS_EX_CMD_QUERY_DEVICE)
            return EOPNOTSUPP;
        return query_device_ex(device, (void *)answer, bytes, answer + bytes, own_bytes);
    }
    switch (header->command) {
    case IB_USER_VERBS_CMD_GET_CONTEXT:
        *ANSWER(ib_uverbs_get_context_resp) = (struct ib_uverbs_get_context_resp){ eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), 1 };
        *(struct efa_ibv_alloc_ucontext_resp *)OWN_ANSWER(ib_uverbs_get_context_resp) = (struct efa_ibv_alloc_ucontext_resp){
            .cmds_supp_udata_mask = EFA_USER_CMDS_SUPP_UDATA_QUERY_DEVICE | EFA_USER_CMDS_SUPP_UDATA_CREATE_AH,
            .sub_cqs_per_cq = 2, .inline_buf_size = 32, .max_llq_size = 1 << 17, .min_sq_wr = 16 };
        return 0;
    case IB_USER_VERBS_CMD_QUERY_DEVICE: return query_device(device, (void *)answer);
    case IB_USER_VERBS_CMD_QUERY_PORT:
        *ANSWER(ib_uverbs_query_port_resp) = (struct ib_uverbs_query_port_resp){ .max_msg_sz = 8928, .gid_tbl_len = 1,
            .pkey_tbl_len = 1, .state = IBV_PORT_ACTIVE, .max_mtu = IBV_MTU_4096, .active_mtu = IBV_MTU_4096, .phys_state = 5 };
        return 0;
    case IB_USER_VERBS_CMD_ALLOC_PD:
        ANSWER(ib_uverbs_alloc_pd_resp)->pd_handle = ++domains;
        ((struct efa_ibv_alloc_pd_resp *)OWN_ANSWER(ib_uverbs_alloc_pd_resp))->pdn = domains;
        return 0;
    case IB_USER_VERBS_CMD_REG_MR: return register_memory((const void *)ask, (void *)answer);
    case IB_USER_VERBS_CMD_CREATE_AH: return create_ah((const void *)ask, (void *)answer, OWN_ANSWER(ib_uverbs_create_ah_resp));
    case IB_USER_VERBS_CMD_CREATE_CQ:
        return create_cq((const void *)ask, OWN_ASK(ib_uverbs_create_cq), (void *)answer, OWN_ANSWER(ib_uverbs_create_cq_resp));
    case IB_USER_VERBS_CMD_CREATE_QP:
        return create_qp(device, (const void *)ask, OWN_ASK(ib_uverbs_create_qp), (void *)answer, OWN_ANSWER(ib_uverbs_create_qp_resp));
    case IB_USER_VERBS_CMD_MODIFY_QP: return modify_qp((const void *)ask);
    case IB_USER_VERBS_CMD_DEALLOC_PD: return 0;
    case IB_USER_VERBS_CMD_DEREG_MR: mrs[ASK(ib_uverbs_dereg_mr)->mr_handle].used = 0; return 0;
    case IB_USER_VERBS_CMD_DESTROY_AH: ahs[ASK(ib_uverbs_destroy_ah)->ah_handle].used = 0; return 0;
    case IB_USER_VERBS_CMD_DESTROY_QP:
        qps[ASK(ib_uverbs_destroy_qp)->qp_handle].used = 0;
        ANSWER(ib_uverbs_destroy_qp_resp)->events_reported = 0;
        return 0;
    case IB_USER_VERBS_CMD_DESTROY_CQ:
        cqs[ASK(ib_uverbs_destroy_cq)->cq_handle].used = 0;
        memset(answer, 0, sizeof(struct ib_uverbs_destroy_cq_resp));
        return 0;
    default: return EOPNOTSUPP;
    }
}

// ---- functions of libc that libibverbs calls ----

static int device_of_path(const char *path) {
    static const char prefix[] = "/dev/infiniband/uverbs";
    if (!path || strncmp(path, prefix, sizeof prefix - 1))
        return -1;
    int device = atoi(path + sizeof prefix - 1);
    return device < DEVICES ? device : -1;
}

int open(const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = va_arg(arguments, mode_t);
    va_end(arguments);
    int device = device_of_path(path), file = REAL(open)(device < 0 ? path : "/dev/null", flags, mode);
    if (device >= 0 && file >= 0 && file < FILES)
        device_of_file[file] = device + 1;
    return file;
}

int close(int file) {
    if (file >= 0 && file < FILES)
        device_of_file[file] = 0;
    return REAL(close)(file);
}

int stat(const char *restrict path, struct stat *restrict result) { return REAL(stat)(device_of_path(path) < 0 ? path : "/dev/null", result); }

ssize_t write(int file, const void *bytes, size_t count) {
    if (file < 0 || file >= FILES || !device_of_file[file])
        return REAL(write)(file, bytes, count);
    pthread_mutex_lock(&lock);
    int error = command(device_of_file[file] - 1, bytes);
    pthread_mutex_unlock(&lock);
    errno = error;
    return error ? -1 : (ssize_t)count;
}

void *mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset) {
    if (file >= 0 && file < FILES && device_of_file[file])
        file = maps[offset / PAGE].file, offset = 0;
    return REAL(mmap)(address, bytes, protection, flags, file, offset);
}

int open64(const char *, int, ...) __attribute__((alias("open")));
int stat64(const char *restrict, struct stat64 *restrict) __attribute__((alias("stat")));
void *mmap64(void *, size_t, int, int, int, off64_t) __attribute__((alias("mmap")));

int socket(int domain, int type, int protocol) { // without netlink, libibverbs reads sysfs
    if (domain == AF_NETLINK && protocol == 20 /* NETLINK_RDMA */) {
        errno = EPROTONOSUPPORT;
        return -1;
    }
    return REAL(socket)(domain, type, protocol);
}

static void put(const char *text, const char *format, ...) {
    char path[256];
    int length = snprintf(path, sizeof path, "%s/class/", sysfs);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(path + length, sizeof path - length, format, arguments);
    va_end(arguments);
    for (char *slash = path + strlen(sysfs) + 1; (slash = strchr(slash, '/')); *slash++ = '/')
        *slash = 0, mkdir(path, 0700);
    FILE *file = fopen(path, "w");
    if (!file || fputs(text, file) < 0 || fclose(file))
        abort();
}

__attribute__((constructor)) static void start(void) {
    const char *seed = getenv("NIC_SEED"), *delay = getenv("NIC_DELAY_US");
    random_state ^= seed ? strtoull(seed, NULL, 0) * 0x9e3779b97f4a7c15ull : 0;
    longest_delay_ns = delay ? strtoull(delay, NULL, 0) * 1000 : 0;
    strcpy(sysfs, "/tmp/nic.XXXXXX");
    if (!mkdtemp(sysfs))
        abort();
    setenv("SYSFS_PATH", sysfs, 1);
    put("6\n", "infiniband_verbs/abi_version");
    for (int device = 0; device < DEVICES; device++) {
        char text[64];
        snprintf(text, sizeof text, "nic%d\n", device);
        put(text, "infiniband_verbs/uverbs%d/ibdev", device);
        put("1:3\n", "infiniband_verbs/uverbs%d/dev", device);
        put("1\n", "infiniband_verbs/uverbs%d/abi_version", device);
        put("pci:v00001D0Fd0000EFA2sv00001D0Fsd0000EFA2bc02sc00i00\n", "infiniband/nic%d/device/modalias", device);
        put("7: unspecified\n", "infiniband/nic%d/node_type", device);
        snprintf(text, sizeof text, "0000:0000:0000:%04x\n", device + 1);
        put(text, "infiniband/nic%d/node_guid", device);
        snprintf(text, sizeof text, "fe80:0000:0000:0000:0200:0000:0000:%04x\n", device + 1);
        put(text, "infiniband/nic%d/ports/1/gids/0", device);
        put("IB/RoCE v1\n", "infiniband/nic%d/ports/1/gid_attrs/types/0", device);
    }
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, NULL))
        abort();
}

__attribute__((destructor)) static void stop(void) {
    char line[96];
    snprintf(line, sizeof line, "rm -rf %s", sysfs);
    unsetenv("LD_PRELOAD");
    if (system(line))
        return;
}
