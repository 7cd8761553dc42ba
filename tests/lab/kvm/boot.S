# A guest of one boot sector: burns CPU during DUTY of every 16 BIOS ticks (54.9 ms each), halts for the rest.
# The duty (0 to 16) is the byte at offset 500, which guest.sh patches. Says LAB-READY on the serial port.
    .code16
    .text
    .globl _start
_start:
    cli
    xor %ax, %ax
    mov %ax, %ds
    mov %ax, %ss
    mov $0x7c00, %sp
    sti
    mov $ready, %si
say:
    lodsb
    test %al, %al
    jz look
    mov $0x3f8, %dx
    out %al, %dx
    jmp say
look:
    mov 0x046c, %al             # low byte of the BIOS tick count
    and $15, %al
    cmp duty, %al
    jb burn
    hlt                         # until the next interrupt
    jmp look
burn:
    mov $20000, %cx
spin:
    dec %cx
    jnz spin
    jmp look
ready:
    .asciz "LAB-READY\r\n"
    .org 500
duty:
    .byte 8
    .org 510
    .word 0xaa55
