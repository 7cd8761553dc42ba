# A guest of one disk sector: it sleeps until a byte comes on its serial line, works, and sends the byte back.
.code16
.globl _start
_start:
    cli
    xorw %ax, %ax
    movw %ax, %ds
    movw %ax, %ss
    movw $0x7c00, %sp
    movw $received, 0x30        # interrupt 12: the line of the first serial port
    movw $0, 0x32
    movw $0x3fb, %dx            # eight bits
    movb $3, %al
    outb %al, %dx
    movw $0x3f9, %dx            # interrupt on a byte
    movb $1, %al
    outb %al, %dx
    movw $0x3fc, %dx            # ready, interrupts on
    movb $0x0b, %al
    outb %al, %dx
    inb $0x21, %al
    andb $0xef, %al
    outb %al, $0x21
sleep:
    sti
    hlt
    jmp sleep
received:
    pushw %ax
    pushw %dx
    pushl %ecx
    movw $0x3fd, %dx
    inb %dx, %al
    testb $1, %al
    jz done
    movw $0x3f8, %dx
    inb %dx, %al
    movl $2000000, %ecx         # some milliseconds
work:
    decl %ecx
    jnz work
    outb %al, %dx
done:
    movb $0x20, %al
    outb %al, $0x20
    popl %ecx
    popw %dx
    popw %ax
    iret
    .org 510
    .word 0xaa55
