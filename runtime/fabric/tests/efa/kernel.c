// The kernel: it creates objects for the commands of libibverbs in their write() form. See nic.h.
#include "nic.h"
#include <sys/eventfd.h>

// These are the sizes and values that src/verbs/efadv.rs declares.
_Static_assert(sizeof(struct efadv_device_attr) == 32 && sizeof(struct efadv_qp_init_attr) == 16, "sizes");
_Static_assert(offsetof(struct efadv_device_attr, device_caps) == 24 && offsetof(struct efadv_qp_init_attr, flags) == 12, "offsets");
_Static_assert(EFADV_DEVICE_ATTR_CAPS_RDMA_READ == 1 << 0 && EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE == 1 << 3 && EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV == 1 << 4, "values");
_Static_assert(sizeof(struct efadv_ah_attr) == 16 && offsetof(struct efadv_ah_attr, ahn) == 8, "address handles");
_Static_assert(EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV == 1 && EFADV_QP_DRIVER_TYPE_SRD == 0, "values");

static int maps[FILES]; // The file that mmap finds at offset index * PAGE, or 0.

int file_at(uint64_t offset) { return offset / PAGE < FILES ? maps[offset / PAGE] : -1; }

static int free_slot(void *table, size_t size) { // Each object starts with `used`. Slot 0 is never assigned.
    for (int index = 1; index < OBJECTS; index++)
        if (!*(int *)((char *)table + index * size))
            return index;
    return 0;
}

// Creates memory that both sides map. Returns the offset at which mmap finds it.
static uint64_t share(struct pages *pages, size_t bytes) {
    int index = 1;
    while (index < FILES && maps[index])
        index++;
    pages->bytes = (bytes + PAGE - 1) / PAGE * PAGE;
    pages->file = memfd_create("nic", MFD_CLOEXEC);
    if (index == FILES || pages->file < 0 || ftruncate(pages->file, pages->bytes))
        abort();
    pages->at = REAL(mmap)(NULL, pages->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, pages->file, 0);
    maps[index] = pages->file;
    return (uint64_t)index * PAGE;
}

static void give_back(struct pages *pages) {
    for (int index = 1; index < FILES; index++)
        if (maps[index] == pages->file)
            maps[index] = 0;
    munmap(pages->at, pages->bytes);
    REAL(close)(pages->file);
}

static int query_device(int device, struct ib_uverbs_query_device_resp *base) {
    *base = (struct ib_uverbs_query_device_resp){
        .max_mr_size = 1ull << 40, .page_size_cap = 0xfffff000, .max_qp = QUEUE_PAIRS, .max_qp_wr = 4096, .max_sge = 1, .max_sge_rd = 1,
        .max_cq = OBJECTS, .max_cqe = 1 << 15, .max_mr = OBJECTS, .max_pd = OBJECTS, .max_ah = OBJECTS, .phys_port_cnt = 1, .max_pkeys = 1,
    };
    return 0;
}

static int query_device_ex(int device, struct ib_uverbs_ex_query_device_resp *answer, size_t bytes, void *own, size_t own_bytes) {
    struct efa_ibv_ex_query_device_resp caps = { .max_sq_wr = 2048, .max_rq_wr = 4096, .max_sq_sge = 2, .max_rq_sge = 1, .max_rdma_size = 1 << 30 };
    caps.device_caps = EFA_QUERY_DEVICE_CAPS_RDMA_READ | EFA_QUERY_DEVICE_CAPS_RNR_RETRY | (device < 6 ? EFA_QUERY_DEVICE_CAPS_RDMA_WRITE : 0) |
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
    int index = free_slot(qps, sizeof *qps), used[QUEUE_PAIRS + 1] = { 0 }, number = 1;
    for (int other = 1; other < OBJECTS; other++)
        if (qps[other].used && qps[other].device == device)
            used[qps[other].number] = 1;
    while (number <= QUEUE_PAIRS && used[number])
        number++;
    if (number > QUEUE_PAIRS)
        return ENOSPC;
    if (!index || ask->qp_type != IBV_QPT_DRIVER)
        return EINVAL;
    struct queue_pair *pair = &qps[index];
    *pair = (struct queue_pair){ .used = 1, .device = device, .number = number, .unsolicited = own->flags & EFA_CREATE_QP_WITH_UNSOLICITED_WRITE_RECV,
        .send_cq = ask->send_cq_handle, .receive_cq = ask->recv_cq_handle, .writes = own->sq_ring_size / sizeof(struct efa_io_tx_wqe),
        .receives = own->rq_ring_size / sizeof(struct efa_io_rx_desc) };
    own_answer->llq_desc_mmap_key = share(&pair->send_ring, own->sq_ring_size);
    own_answer->rq_mmap_key = share(&pair->receive_ring, own->rq_ring_size);
    own_answer->rq_mmap_size = (own->rq_ring_size + PAGE - 1) / PAGE * PAGE;
    own_answer->sq_db_mmap_key = own_answer->rq_db_mmap_key = share(&pair->doorbells, PAGE);
    own_answer->rq_db_offset = RECEIVE_DOORBELL, own_answer->recv_sub_cq_idx = 1;
    *answer = (struct ib_uverbs_create_qp_resp){ .qp_handle = index, .qpn = number, .max_send_wr = ask->max_send_wr,
        .max_recv_wr = ask->max_recv_wr, .max_send_sge = ask->max_send_sge, .max_recv_sge = ask->max_recv_sge };
    return 0;
}

static void destroy_qp(int index) {
    struct queue_pair *pair = &qps[index];
    forget_requests(index);
    give_back(&pair->send_ring);
    give_back(&pair->receive_ring);
    give_back(&pair->doorbells);
    pair->used = 0;
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

static int create_ah(int device, const struct ib_uverbs_create_ah *ask, struct ib_uverbs_create_ah_resp *answer,
                     struct efa_ibv_create_ah_resp *own_answer) {
    int index = address_of(device, ask->attr.grh.dgid);
    if (index == NO_ADDRESS)
        index = free_slot(ahs, sizeof *ahs);
    if (!index)
        return ENOMEM;
    ahs[index].used++;
    ahs[index].device = device;
    memcpy(ahs[index].gid, ask->attr.grh.dgid, 16);
    answer->ah_handle = own_answer->efa_address_handle = index;
    return 0;
}

// A command of the write() ABI, like its answer, consists of a structure of its own and the driver's structure.
#define ASK(type) ((const struct type *)ask)
#define ANSWER(type) ((struct type *)answer)
#define OWN_ASK(type) ((void *)(ASK(type) + 1))
#define OWN_ANSWER(type) ((void *)(ANSWER(type) + 1))
int command(int device, const struct ib_uverbs_cmd_hdr *header) {
    const char *ask = (const char *)(header + 1);
    char *answer = (char *)*(const uint64_t *)ask; // A command that has an answer starts with its address.
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
    case IB_USER_VERBS_CMD_CREATE_AH: return create_ah(device, (const void *)ask, (void *)answer, OWN_ANSWER(ib_uverbs_create_ah_resp));
    case IB_USER_VERBS_CMD_CREATE_CQ:
        return create_cq((const void *)ask, OWN_ASK(ib_uverbs_create_cq), (void *)answer, OWN_ANSWER(ib_uverbs_create_cq_resp));
    case IB_USER_VERBS_CMD_CREATE_QP:
        return create_qp(device, (const void *)ask, OWN_ASK(ib_uverbs_create_qp), (void *)answer, OWN_ANSWER(ib_uverbs_create_qp_resp));
    case IB_USER_VERBS_CMD_MODIFY_QP: return modify_qp((const void *)ask);
    case IB_USER_VERBS_CMD_DEALLOC_PD: return 0;
    case IB_USER_VERBS_CMD_DEREG_MR: mrs[ASK(ib_uverbs_dereg_mr)->mr_handle].used = 0; return 0;
    case IB_USER_VERBS_CMD_DESTROY_AH: ahs[ASK(ib_uverbs_destroy_ah)->ah_handle].used--; return 0;
    case IB_USER_VERBS_CMD_DESTROY_QP:
        destroy_qp(ASK(ib_uverbs_destroy_qp)->qp_handle);
        ANSWER(ib_uverbs_destroy_qp_resp)->events_reported = 0;
        return 0;
    case IB_USER_VERBS_CMD_DESTROY_CQ:
        give_back(&cqs[ASK(ib_uverbs_destroy_cq)->cq_handle].ring);
        cqs[ASK(ib_uverbs_destroy_cq)->cq_handle].used = 0;
        memset(answer, 0, sizeof(struct ib_uverbs_destroy_cq_resp));
        return 0;
    default: return EOPNOTSUPP;
    }
}
