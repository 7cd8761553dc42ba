# What takes the place of the compressed kernel behind the kernel's own setup code, for HVM guests: their device model hands
# a kernel over a byte at a time, a minute for a whole one, but puts files into their memory at once. It has put the unpacked
# kernel where that belongs, and the initramfs at INITRD; zeros may follow that.
        .code32
        .globl  _start
_start: movl    $INITRD, 0x218(%esi)            # the boot parameters' ramdisk_image and ramdisk_size
        movl    $INITRD_SIZE, 0x21c(%esi)
        lgdt    table
        mov     $0x20, %eax                     # long mode: PAE, page tables, EFER.LME, paging
        mov     %eax, %cr4
        mov     $top, %eax
        mov     %eax, %cr3
        mov     $0xc0000080, %ecx
        rdmsr
        bts     $8, %eax
        wrmsr
        mov     $0x80000001, %eax
        mov     %eax, %cr0
        ljmp    $0x10, $long
        .code64
long:   mov     $0x18, %eax
        mov     %eax, %ds
        mov     %eax, %es
        mov     %eax, %ss
        mov     $KERNEL, %eax
        jmp     *%rax
        .balign 8
segments:
        .quad   0, 0, 0x00af9a000000ffff, 0x00cf92000000ffff
table:  .word   table - segments - 1
        .long   segments
        .balign 4096
top:    .quad   middle + 3
        .balign 4096
middle: .quad   pages + 3
        .balign 4096
pages:  .set    page, 0x83                      # the first GiB, as it is
        .rept   512
        .quad   page
        .set    page, page + 0x200000
        .endr
