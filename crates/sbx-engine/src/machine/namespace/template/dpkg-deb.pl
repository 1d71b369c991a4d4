#!/usr/bin/perl
# dpkg keeps a hard link to every file it replaces. The host's files belong to nobody in this sandbox and
# cannot be linked (EOVERFLOW), so each one that a package is about to replace is first copied under root's
# name. Then the real dpkg-deb runs. Only modules of perl-base are used.
use strict;
use warnings;

my $real   = '/usr/bin/dpkg-deb';
my $nobody = 65534;
if (open my $id, '<', '/proc/sys/kernel/overflowuid') { $nobody = <$id> + 0 }

sub copy_up {
    my ($path) = @_;
    my @was = lstat $path or return;
    return unless $was[4] == $nobody;
    my $new = "$path.sbx-copy";
    unlink $new;
    if (-l _) {
        my $to = readlink $path;
        symlink $to, $new or die "$new: $!\n";
    }
    elsif (-f _) {
        my $in;
        if (!open $in, '<:raw', $path) {
            # Not for the sandbox: there is nothing to keep, and as it is it would be in the way.
            unlink $path or die "$path: $!\n";
            return;
        }
        sysopen my $out, $new, 0301, 0600 or die "$new: $!\n";    # O_WRONLY|O_CREAT|O_EXCL
        while (my $read = sysread $in, my $data, 1 << 20) {
            my $done = 0;
            while ($done < $read) {
                $done += syswrite($out, $data, $read - $done, $done) // die "$new: $!\n";
            }
        }
        close $out or die "$new: $!\n";
        utime $was[8], $was[9], $new;
        chmod $was[2] & 07777, $new or die "$new: $!\n";
    }
    else {
        return;
    }
    rename $new, $path or die "$path: $!\n";
}

sub prepare {
    my ($deb) = @_;
    my @paths;
    open my $list, '-|', 'sh', '-c', '"$0" --fsys-tarfile "$1" | tar -t --quoting-style=literal -f -', $real, $deb
        or die "tar: $!\n";
    while (my $name = <$list>) {
        chomp $name;
        next if $name =~ m{/\z};
        $name =~ s{\A\.?/*}{/};
        push @paths, $name;
    }
    close $list;
    # What a package replaces may have been moved aside by a diversion.
    if (open my $diversions, '<', '/var/lib/dpkg/diversions') {
        while (my $name = <$diversions>) {
            chomp $name;
            push @paths, $name if $name =~ m{\A/};
        }
    }
    for my $path (@paths) {
        eval { copy_up($path); 1 } or print STDERR "sbx: cannot prepare a host file for replacement: $@";
    }
}

prepare($ARGV[1]) if $> == 0 && @ARGV == 2 && $ARGV[0] eq '--fsys-tarfile';
exec {$real} 'dpkg-deb', @ARGV or die "$real: $!\n";
