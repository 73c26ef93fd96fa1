//! The nf_tables socket.

use std::error::Error;
use std::fmt::{self, Display};
use std::os::fd::{AsFd, BorrowedFd};

use super::batch::Batch;
use super::batch_encode::encode_question;
use super::hooks::{self, HookInfo};
use super::info::{
    ChainInfo, ListEntry, RuleInfo, SetInfo, TableInfo, decode_elements, join_ranges,
    join_some_ranges,
};
use super::key::Key;
use super::names::{Family, HookPoint, TableRef};
use super::object::Element;
use super::{NFGENMSG, SUBSYSTEM, msg, nfgenmsg};
use crate::netlink::{Errno, NetlinkError, Outcome, Request, Socket, nothing_if};
use crate::netns::Netns;
use crate::wire::{Message, Writer};

/// `linux include/uapi/linux/netlink.h` NETLINK_NETFILTER.
pub(crate) const NETLINK_NETFILTER: isize = 12;
/// `linux include/uapi/linux/netfilter/nfnetlink.h`.
const NFNL_MSG_BATCH_BEGIN: u16 = 0x10;
const NFNL_MSG_BATCH_END: u16 = 0x11;
const NFNL_BATCH_GENID: u16 = 1;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;

/// What the kernel answers about a name that nothing has. A name longer than 255 bytes
/// (`linux include/uapi/linux/netfilter/nf_tables.h` NFT_NAME_MAXLEN) is out of range for it.
const ABSENT: [Errno; 2] = [Errno::NOENT, Errno::RANGE];

/// A blocking socket for nf_tables. It keeps the namespace it was opened in.
///
/// Closing it after a transaction that deletes waits for the kernel (16 ms): see
/// [`crate::linger::leave_open`].
///
/// # Privileges
/// CAP_NET_ADMIN in the user namespace that owns the network namespace, for queries too.
#[derive(Debug)]
pub struct NftSocket {
    socket: Socket,
}

/// Elements of a set or map, perhaps not all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SomeElements {
    /// The elements.
    pub elements: Vec<Element>,
    /// There are more.
    pub more: bool,
    /// There is also an element for all keys that have none (nft: `*`), not among these.
    pub for_others: bool,
}

/// A transaction that failed; nothing of it was applied.
#[derive(Debug)]
#[non_exhaustive]
pub struct NftError {
    /// The index of the operation that failed first; `None` if the failure belongs to no single
    /// operation.
    pub index: Option<usize>,
    /// The reason; the text names the operation.
    pub source: NetlinkError,
}

impl NftError {
    /// The kernel's error number, if the kernel refused.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        self.source.errno()
    }

    /// Whether an object exists that must not (EEXIST).
    #[must_use]
    pub fn is_exists(&self) -> bool {
        self.source.is_exists()
    }

    /// Whether an object is missing that must exist (ENOENT).
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.source.is_not_found()
    }

    /// Whether an object is still referred to (EBUSY).
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.errno() == Some(Errno::BUSY)
    }

    /// Whether another transaction came first ([`Batch::require_generation`]): read again and
    /// retry.
    #[must_use]
    pub fn is_changed(&self) -> bool {
        self.errno() == Some(Errno::RESTART)
    }
}

impl Display for NftError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl Error for NftError {
    /// The source of the netlink error, whose text is this error's text.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.source()
    }
}

impl AsFd for NftSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl NftSocket {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// [`NetlinkError::Open`].
    pub fn open() -> Result<Self, NetlinkError> {
        Socket::open(NETLINK_NETFILTER).map(|socket| Self { socket })
    }

    /// Opens a socket in another namespace, without leaving the thread there.
    ///
    /// # Errors
    /// [`NetlinkError::Open`].
    pub fn open_in(netns: &Netns) -> Result<Self, NetlinkError> {
        Socket::open_in(netns, NETLINK_NETFILTER).map(|socket| Self { socket })
    }

    /// Returns the number by which the kernel names the socket in messages to listeners.
    ///
    /// # Errors
    /// The kernel's.
    pub fn port(&self) -> std::io::Result<u32> {
        self.socket.port()
    }

    /// Commits a transaction, all of it or nothing. An empty one is not sent.
    ///
    /// # Errors
    /// [`NftError`] names the first operation that failed. A failure that the kernel has to roll
    /// back takes 8–20 ms.
    pub fn commit(&mut self, batch: &Batch) -> Result<(), NftError> {
        let whole = |source| NftError { index: None, source };
        let at = |index| move |source| NftError { index: Some(index), source };
        if batch.is_empty() {
            return Ok(());
        }
        for (index, operation) in batch.operations().iter().enumerate() {
            if !operation.comments_fit() {
                return Err(at(index)(NetlinkError::Unsendable {
                    operation: operation.to_string(),
                    what: "a comment is too long or contains a NUL byte",
                }));
            }
        }
        let (writer, begin, messages) = self.encode(batch);
        self.socket.send(&writer, messages.len(), &COMMIT).map_err(whole)?;

        // Before kernel 6.10, batch begin and end are not acknowledged; we never request it.
        let mut answered = vec![false; messages.len()];
        let mut left = messages.len();
        let mut failed: Option<(usize, Outcome)> = None;
        let mut whole_failed = None;
        let sent = writer.bytes();
        let received = self.socket.receive_from(begin, &COMMIT, sent, |message, outcome| {
            let Some(outcome) = outcome else { return false };
            let refused = matches!(outcome, Outcome::Refused(..));
            if let Ok(index) = messages.binary_search_by_key(&message.seq, |entry| entry.0) {
                left -= usize::from(!std::mem::replace(&mut answered[index], true));
                if refused && failed.as_ref().is_none_or(|&(known, _)| index < known) {
                    failed = Some((index, outcome));
                }
            } else if refused {
                // A failure of the batch as a whole: no permission, another generation, the commit
                // itself. It comes first.
                whole_failed = Some(outcome);
                return true;
            }
            left == 0
        });
        if let Some(outcome) = whole_failed {
            return outcome.into_result(&COMMIT).map_err(whole);
        }
        if let Some((message, outcome)) = failed {
            let index = messages[message].1;
            return outcome.into_result(&batch.operations()[index]).map_err(at(index));
        }
        received.map_err(whole)
    }

    /// Reads the generation number of the last transaction that changed anything; see
    /// [`Batch::require_generation`].
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn generation(&mut self) -> Result<u32, NetlinkError> {
        const OPERATION: &str = "read the generation of nftables";
        let body = |writer: &mut Writer| writer.raw(&nfgenmsg(0, 0));
        let request = Request { operation: &OPERATION, kind: msg::GET_GEN, flags: 0, body: &body };
        let found = self.socket.get(&request, |message| {
            let mut attributes = message.attributes(NFGENMSG);
            let id = attributes.find(|attribute| attribute.kind == 1)?;
            (message.kind == msg::NEW_GEN).then(|| id.u32_be()).flatten()
        })?;
        found.ok_or_else(|| NetlinkError::Incomplete {
            operation: OPERATION.to_owned(),
            what: "a generation",
        })
    }

    /// Looks a table up; `None` if it does not exist.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn get_table(&mut self, table: &TableRef) -> Result<Option<TableInfo>, NetlinkError> {
        let body = |writer: &mut Writer| begin(writer, table);
        let operation = format_args!("look up table {table}");
        let request =
            Request { operation: &operation, kind: msg::GET_TABLE, flags: 0, body: &body };
        nothing_if(self.socket.get(&request, TableInfo::decode), &ABSENT)
    }

    /// Looks a chain up; `None` if it or its table does not exist.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn get_chain(
        &mut self,
        table: &TableRef,
        chain: &str,
    ) -> Result<Option<ChainInfo>, NetlinkError> {
        let body = |writer: &mut Writer| {
            begin(writer, table);
            writer.put_text(3, chain);
        };
        let operation = format_args!("look up chain {table} {chain}");
        let request =
            Request { operation: &operation, kind: msg::GET_CHAIN, flags: 0, body: &body };
        nothing_if(self.socket.get(&request, ChainInfo::decode), &ABSENT)
    }

    /// Looks chains of a table up, all in one request; leaves out those that do not exist.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn get_chains<'a>(
        &mut self,
        table: &TableRef,
        chains: impl IntoIterator<Item = &'a str>,
    ) -> Result<Vec<ChainInfo>, NetlinkError> {
        let mut writer = Writer::new();
        let mut asked = Vec::new();
        for chain in chains {
            let seq = self.socket.next_seq();
            // Not acknowledged: each question has one answer, the chain or the refusal.
            writer.message(msg::GET_CHAIN, NLM_F_REQUEST, seq, |writer| {
                begin(writer, table);
                writer.put_text(3, chain);
            });
            asked.push(seq);
        }
        let Some(first) = asked.first().copied() else { return Ok(Vec::new()) };
        let operation = format_args!("look up chains of {table}");
        self.socket.send(&writer, asked.len(), &operation)?;
        let (mut found, mut left, mut refused) = (Vec::new(), asked.len(), None);
        self.socket.receive_from(first, &operation, writer.bytes(), |message, outcome| {
            left -= 1;
            match outcome {
                None => found.extend(ChainInfo::decode(message)),
                Some(Outcome::Refused(errno, _)) if ABSENT.contains(&errno) => {}
                // A caller without permission gets only one answer.
                Some(other) => {
                    refused = Some(other);
                    return true;
                }
            }
            left == 0
        })?;
        refused.map_or(Ok(()), |outcome| outcome.into_result(&operation))?;
        Ok(found)
    }

    /// Looks a set or map up; `None` if it or its table does not exist.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn get_set(
        &mut self,
        table: &TableRef,
        set: &str,
    ) -> Result<Option<SetInfo>, NetlinkError> {
        let body = |writer: &mut Writer| {
            begin(writer, table);
            writer.put_text(2, set);
        };
        let operation = format_args!("look up set {table} {set}");
        let request = Request { operation: &operation, kind: msg::GET_SET, flags: 0, body: &body };
        nothing_if(self.socket.get(&request, SetInfo::decode), &ABSENT)
    }

    /// Looks an element up, at the same cost for a set of any size; `None` if it or its set does
    /// not exist.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn get_element(
        &mut self,
        table: &TableRef,
        set: &str,
        key: &Key,
    ) -> Result<Option<Element>, NetlinkError> {
        let body = |writer: &mut Writer| encode_question(writer, table, set, key);
        let operation = format_args!("look up element {key:?} of {table} {set}");
        let request =
            Request { operation: &operation, kind: msg::GET_ELEMENT, flags: 0, body: &body };
        let found = nothing_if(self.socket.get(&request, decode_elements), &[Errno::NOENT])?;
        Ok(found.and_then(|listed| join_ranges(listed).into_iter().next()))
    }

    /// Lists the elements of a set or map; none if it does not exist.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn elements(&mut self, table: &TableRef, set: &str) -> Result<Vec<Element>, NetlinkError> {
        let body = |writer: &mut Writer| {
            begin(writer, table);
            writer.put_text(2, set);
        };
        let operation = format_args!("list the elements of {table} {set}");
        let request =
            Request { operation: &operation, kind: msg::GET_ELEMENT, flags: 0, body: &body };
        let found = nothing_if(self.socket.dump(&request, decode_elements), &ABSENT)?;
        Ok(join_ranges(found.into_iter().flatten().collect()))
    }

    /// Lists the elements of a set or map, but not many more than `limit`: a message has a thousand
    /// and more. For sets of other programs, which may have any number.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn some_elements(
        &mut self,
        table: &TableRef,
        set: &str,
        limit: usize,
    ) -> Result<SomeElements, NetlinkError> {
        let body = |writer: &mut Writer| {
            begin(writer, table);
            writer.put_text(2, set);
        };
        let operation = format_args!("list the elements of {table} {set}");
        let request =
            Request { operation: &operation, kind: msg::GET_ELEMENT, flags: 0, body: &body };
        let found = self.socket.dump_at_most(&request, limit, Vec::len, decode_elements);
        let (listed, more) = nothing_if(found, &ABSENT)?;
        let listed: Vec<ListEntry> = listed.into_iter().flatten().collect();
        let for_others = listed.iter().any(|one| matches!(one, ListEntry::CatchAll));
        let elements = if more { join_some_ranges(listed) } else { join_ranges(listed) };
        Ok(SomeElements { elements, more, for_others })
    }

    /// Lists the rules of all chains of a table, but no more than `limit`; also says whether there
    /// are more.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn some_rules_of_table(
        &mut self,
        table: &TableRef,
        limit: usize,
    ) -> Result<(Vec<RuleInfo>, bool), NetlinkError> {
        let body = |writer: &mut Writer| begin(writer, table);
        let operation = format_args!("list the rules of {table}");
        let request = Request { operation: &operation, kind: msg::GET_RULE, flags: 0, body: &body };
        let decode =
            |message: &Message<'_>| RuleInfo::decode(message).filter(|rule| rule.table == *table);
        nothing_if(self.socket.dump_at_most(&request, limit, |_| 1, decode), &ABSENT)
    }

    /// Lists the rules of a chain; none if it does not exist. The cost grows with their number.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn rules(&mut self, table: &TableRef, chain: &str) -> Result<Vec<RuleInfo>, NetlinkError> {
        let body = |writer: &mut Writer| {
            begin(writer, table);
            writer.put_text(2, chain);
        };
        let operation = format_args!("list the rules of {table} {chain}");
        let request = Request { operation: &operation, kind: msg::GET_RULE, flags: 0, body: &body };
        let mut found = nothing_if(self.socket.dump(&request, RuleInfo::decode), &ABSENT)?;
        // Kernels before 5.11 do not filter by a chain that does not exist.
        found.retain(|rule| rule.table == *table && rule.chain == chain);
        Ok(found)
    }

    /// Lists the rules of all chains of a table; none if it does not exist.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn rules_of_table(&mut self, table: &TableRef) -> Result<Vec<RuleInfo>, NetlinkError> {
        let body = |writer: &mut Writer| begin(writer, table);
        let operation = format_args!("list the rules of {table}");
        let request = Request { operation: &operation, kind: msg::GET_RULE, flags: 0, body: &body };
        let mut found = nothing_if(self.socket.dump(&request, RuleInfo::decode), &ABSENT)?;
        found.retain(|rule| rule.table == *table);
        Ok(found)
    }

    /// Lists the chains of a family, or of all.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn chains(&mut self, family: Option<Family>) -> Result<Vec<ChainInfo>, NetlinkError> {
        let body = |writer: &mut Writer| writer.raw(&nfgenmsg(family.map_or(0, Family::number), 0));
        let request =
            Request { operation: &"list chains", kind: msg::GET_CHAIN, flags: 0, body: &body };
        nothing_if(self.socket.dump(&request, ChainInfo::decode), &[Errno::NOENT])
    }

    /// Lists the tables of a family, or of all.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn tables(&mut self, family: Option<Family>) -> Result<Vec<TableInfo>, NetlinkError> {
        let body = |writer: &mut Writer| writer.raw(&nfgenmsg(family.map_or(0, Family::number), 0));
        let request =
            Request { operation: &"list tables", kind: msg::GET_TABLE, flags: 0, body: &body };
        nothing_if(self.socket.dump(&request, TableInfo::decode), &[Errno::NOENT])
    }

    /// Lists the sets and maps of a table; none if it does not exist.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn sets(&mut self, table: &TableRef) -> Result<Vec<SetInfo>, NetlinkError> {
        let body = |writer: &mut Writer| begin(writer, table);
        let operation = format_args!("list the sets of {table}");
        let request = Request { operation: &operation, kind: msg::GET_SET, flags: 0, body: &body };
        nothing_if(self.socket.dump(&request, SetInfo::decode), &[Errno::NOENT])
    }

    /// Lists the functions at a hook, in order: nftables' base chains, and any others there.
    ///
    /// For [`Family::Inet`] these are the functions for IPv4 and for IPv6. On a kernel that cannot
    /// list them (before 5.14, or without CONFIG_NETFILTER_NETLINK_HOOK) only nftables' base chains
    /// are listed: without the function, and without the tables of the old iptables, which
    /// `/proc/net/ip_tables_names` lists.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn hooks(
        &mut self,
        family: Family,
        point: HookPoint,
    ) -> Result<Vec<HookInfo>, NetlinkError> {
        match self.hooks_if_told(family, point)? {
            Some(hooks) => Ok(hooks),
            None => self.hooks_of_chains(family, point),
        }
    }

    /// Lists the functions at a hook if the kernel can; `None` if it cannot. A kernel that cannot
    /// list them looks for a module at each call, which starts a process: remember its answer.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn hooks_if_told(
        &mut self,
        family: Family,
        point: HookPoint,
    ) -> Result<Option<Vec<HookInfo>>, NetlinkError> {
        match hooks::list(&mut self.socket, family, point) {
            Err(error) if hooks::is_unknown(&error) => Ok(None),
            other => other.map(Some),
        }
    }

    /// Lists the base chains of nftables at a hook. The cost grows with the number of all chains.
    ///
    /// # Errors
    /// Those of [`NetlinkError`].
    pub fn hooks_of_chains(
        &mut self,
        family: Family,
        point: HookPoint,
    ) -> Result<Vec<HookInfo>, NetlinkError> {
        Ok(hooks::from_chains(self.chains(None)?, family, point))
    }

    /// Writes a batch. Returns it with the sequence number of its begin, and of each message with
    /// its operation.
    fn encode(&mut self, batch: &Batch) -> (Writer, u32, Vec<(u32, usize)>) {
        let mut writer = Writer::new();
        let mut messages = Vec::with_capacity(batch.operations().len());
        let begin = self.socket.next_seq();
        writer.message(NFNL_MSG_BATCH_BEGIN, NLM_F_REQUEST, begin, |writer| {
            writer.raw(&nfgenmsg(0, SUBSYSTEM));
            if let Some(generation) = batch.generation() {
                writer.put_u32_be(NFNL_BATCH_GENID, generation);
            }
        });
        for (index, operation) in batch.operations().iter().enumerate() {
            // The number only has to be unique among the new sets of a batch.
            let set_id = u32::try_from(index).unwrap_or(u32::MAX).saturating_add(1);
            operation.encode(set_id, &mut |kind, flags, body| {
                let seq = self.socket.next_seq();
                writer.message(kind, NLM_F_REQUEST | NLM_F_ACK | flags, seq, body);
                messages.push((seq, index));
            });
        }
        let end = self.socket.next_seq();
        writer.message(NFNL_MSG_BATCH_END, NLM_F_REQUEST, end, |writer| {
            writer.raw(&nfgenmsg(0, SUBSYSTEM));
        });
        (writer, begin, messages)
    }
}

/// The operation named when a transaction fails as a whole.
const COMMIT: &str = "commit to nftables";

/// The header and the first attribute of every query about an object in a table.
fn begin(writer: &mut Writer, table: &TableRef) {
    writer.raw(&nfgenmsg(table.family.number(), 0));
    writer.put_text(1, &table.name);
}
