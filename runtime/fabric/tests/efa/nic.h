// EFA devices in software below the real libibverbs and libefa: a library for LD_PRELOAD that consists of three files.
//   nic.c     the NIC, which serves the queues that libefa maps
//   kernel.c  the kernel, which answers the commands of libibverbs
//   libc.c    the access to both: sysfs, /dev/infiniband/uverbsN, write(), mmap
// All endpoints belong to one process. The library is built against the headers of rdma-core 55.
//
// The devices 0 to 3 have all capabilities. 4 and 5 need a receive for each arrival. 6 cannot write to the memory of
// peers. Each has QUEUE_PAIRS queue pairs, whose numbers are unique on the device only. Address handles of a device for the same GID have the same number, by which an
// arrival names its sender. If the receiver's device has no address handle for the sender, the number is NO_ADDRESS.
// As on the wire of SRD, requests are executed in random order, and the parts of a request from the last to the first.
// NIC_SEED is the seed of that order. NIC_DELAY_US is the longest time that a request takes.
#ifndef NIC_H
#define NIC_H
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/efadv.h>
#include <pthread.h>
#include <rdma/efa-abi.h>
#include <rdma/ib_user_verbs.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#define BIT(bit) (1u << (bit))
#define GENMASK(high, low) ((~0u << (low)) & (~0u >> (31 - (high))))
#include "efa_io_defs.h"

// Returns the function of libc that this library overrides.
#define REAL(function) ((typeof(&function))dlsym(RTLD_NEXT, #function))

enum { DEVICES = 7, OBJECTS = 1024, FILES = 4096, PAGE = 4096, QUEUE_PAIRS = 64, NO_ADDRESS = 0xffff };
enum { RECEIVE_DOORBELL = 2048 }; // The offset in a queue pair's page of doorbells. The doorbell of sends is at 0.

struct pages { int file; char *at; size_t bytes; };
struct completion_queue { int used; uint32_t entries, produced[2]; struct pages ring; };
struct queue_pair {
    int used, device, number, state, unsolicited, send_cq, receive_cq;
    uint32_t key, writes, receives;
    uint16_t fetched, received;
    struct pages send_ring, receive_ring, doorbells;
};
struct memory { int used; uint64_t device_address, address, bytes; uint32_t access; };
struct address { int used, device; uint8_t gid[16]; }; // `used` counts the handles.

// The objects by number. 0 is never assigned. The lock protects them.
extern pthread_mutex_t lock;
extern struct completion_queue cqs[OBJECTS];
extern struct queue_pair qps[OBJECTS];
extern struct memory mrs[OBJECTS];
extern struct address ahs[OBJECTS];

void gid_of(int device, uint8_t *gid);
// Returns the number of a device's address handles for a GID, or NO_ADDRESS.
int address_of(int device, const uint8_t *gid);
// Starts the thread that executes requests.
void start_nic(uint64_t seed, uint64_t longest_delay_ns);
// Drops the requests in flight of a queue pair, because another queue pair will get its number.
void forget_requests(int qp);
// Executes a command. Returns an error number.
int command(int device, const struct ib_uverbs_cmd_hdr *header);
// Returns the file of shared memory that is mapped at an offset of a device.
int file_at(uint64_t offset);
#endif
