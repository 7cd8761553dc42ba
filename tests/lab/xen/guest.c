/* A whole PV guest in a page of code: no kernel, no drivers, there at once. Its command line (extra="...") says what
 * it does: "burn" spins for ever, "idle" sleeps for ever, "duty=NN" spins NN of every 100 ms. */
typedef unsigned long u64;
typedef unsigned int u32;

/* Notes by which Xen knows what it loads (name, type, text): system, interface, loader, addresses, entry. */
#define NOTE_TEXT(type, length, text) ".long 4, " #length ", " #type "; .asciz \"Xen\"; .asciz \"" text "\"\n"
#define NOTE_QUAD(type, value) ".long 4, 8, " #type "; .asciz \"Xen\"; .quad " value "\n"
asm(".section .note.Xen, \"a\", @note\n.balign 4\n"
    NOTE_TEXT(6, 8, "labtest") NOTE_TEXT(5, 8, "xen-3.0") NOTE_TEXT(8, 8, "generic")
    NOTE_QUAD(3, "0") NOTE_QUAD(4, "0") NOTE_QUAD(1, "_start")
    ".text\n.globl _start\n_start: cld; mov %rsi, %rdi; lea stack_end(%rip), %rsp; call run\n"
    ".bss\n.balign 4096\n.globl shared\nshared: .skip 4096\nstack: .skip 8192\nstack_end:\n.text\n");
extern unsigned char shared[4096];

static long hypercall(long number, u64 a, u64 b, u64 c) {
  long result;
  register u64 unused asm("r10") = 0;
  asm volatile("syscall" : "=a"(result), "+D"(a), "+S"(b), "+d"(c), "+r"(unused) : "0"(number) : "rcx", "r11", "memory");
  return result;
}

/* SCHEDOP_poll on no ports: sleeps until a time, or for ever. */
struct poll { u64 ports; u32 count, pad; u64 timeout_ns; };
static void sleep_until(u64 time_ns) {
  struct poll poll = {0, 0, 0, time_ns};
  hypercall(29, 3, (u64)&poll, 0);
}

/* The first virtual CPU's time in the shared page, read as the hypervisor's protocol wants it. */
struct vcpu_time { u32 version, pad; u64 tsc, system_ns; u32 factor; signed char shift; };
static u64 now_ns(void) {
  volatile struct vcpu_time *time = (void *)(shared + 32);
  for (;;) {
    u32 version = time->version, low, high;
    asm volatile("" ::: "memory");
    asm volatile("rdtsc" : "=a"(low), "=d"(high));
    u64 ticks = ((u64)high << 32 | low) - time->tsc;
    ticks = time->shift >= 0 ? ticks << time->shift : ticks >> -time->shift;
    u64 result = time->system_ns + (u64)(((unsigned __int128)ticks * time->factor) >> 32);
    asm volatile("" ::: "memory");
    if (!(version & 1) && version == time->version) return result;
  }
}

void run(unsigned char *start_info) {
  const char *words = (const char *)start_info + 128;
  if (words[0] == 'b')
    for (;;) asm volatile("" ::: "memory");
  if (words[0] == 'd') {
    u64 duty = 0;
    for (words += 5; *words >= '0' && *words <= '9'; words++) duty = duty * 10 + (u64)(*words - '0');
    hypercall(14, (u64)shared, *(u64 *)(start_info + 40) | 0x67, 2); /* maps the shared page there */
    for (;;) {
      u64 start = now_ns();
      while (now_ns() - start < duty * 1000000) {}
      sleep_until(start + 100000000);
    }
  }
  for (;;) sleep_until(0);
}
