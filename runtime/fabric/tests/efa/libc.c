// The functions of libc that libibverbs calls, and the sysfs that it reads. See nic.h.
#include "nic.h"
#include <fcntl.h>
#include <ftw.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <sys/stat.h>

static int device_of_file[FILES]; // The number of the device + 1.
static char sysfs[64];

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
        file = file_at(offset), offset = 0;
    return REAL(mmap)(address, bytes, protection, flags, file, offset);
}

int open64(const char *, int, ...) __attribute__((alias("open")));
int stat64(const char *restrict, struct stat64 *restrict) __attribute__((alias("stat")));
void *mmap64(void *, size_t, int, int, int, off64_t) __attribute__((alias("mmap")));

int socket(int domain, int type, int protocol) { // Without netlink, libibverbs reads sysfs.
    if (domain == AF_NETLINK && protocol == 20 /* NETLINK_RDMA */) {
        errno = EPROTONOSUPPORT;
        return -1;
    }
    return REAL(socket)(domain, type, protocol);
}

static void put(const char *text, const char *format, ...) {
    char path[256];
    int length = snprintf(path, sizeof path, "%s/", sysfs);
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
    start_nic(seed ? strtoull(seed, NULL, 0) : 0, delay ? strtoull(delay, NULL, 0) * 1000 : 0);
    strcpy(sysfs, "/tmp/nic.XXXXXX");
    if (!mkdtemp(sysfs))
        abort();
    setenv("SYSFS_PATH", sysfs, 1);
    put("6\n", "class/infiniband_verbs/abi_version");
    for (int device = 0; device < DEVICES; device++) {
        char text[64], link[96];
        snprintf(text, sizeof text, "nic%d\n", device);
        put(text, "class/infiniband_verbs/uverbs%d/ibdev", device);
        put("1:3\n", "class/infiniband_verbs/uverbs%d/dev", device);
        put("1\n", "class/infiniband_verbs/uverbs%d/abi_version", device);
        put("pci:v00001D0Fd0000EFA2sv00001D0Fsd0000EFA2bc02sc00i00\n", "bus/pci/devices/0000:e0:%02x.0/modalias", device);
        put("0x1d0f\n", "bus/pci/devices/0000:e0:%02x.0/vendor", device);
        put("0xefa2\n", "bus/pci/devices/0000:e0:%02x.0/device", device);
        put("7: unspecified\n", "class/infiniband/nic%d/node_type", device);
        snprintf(text, sizeof text, "../../../bus/pci/devices/0000:e0:%02x.0", device);
        snprintf(link, sizeof link, "%s/class/infiniband/nic%d/device", sysfs, device);
        if (symlink(text, link))
            abort();
        snprintf(text, sizeof text, "0000:0000:0000:%04x\n", device + 1);
        put(text, "class/infiniband/nic%d/node_guid", device);
        put("4: ACTIVE\n", "class/infiniband/nic%d/ports/1/state", device);
        put("100 Gb/sec (4X EDR)\n", "class/infiniband/nic%d/ports/1/rate", device);
        snprintf(text, sizeof text, "fe80:0000:0000:0000:0200:0000:0000:%04x\n", device + 1);
        put(text, "class/infiniband/nic%d/ports/1/gids/0", device);
        put("IB/RoCE v1\n", "class/infiniband/nic%d/ports/1/gid_attrs/types/0", device);
    }
}

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *place) { return remove(path); }

// This avoids a child process, which would load this library too.
__attribute__((destructor)) static void stop(void) {
    nftw(sysfs, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}
