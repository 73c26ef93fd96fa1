//! Images for containers, in an archive of OCI's layout: an index of one manifest for each platform
//! (<https://github.com/opencontainers/image-spec>, `image-layout.md`, `image-index.md`).
//!
//! An image is made of trees, from nothing: no other image is below it, and no program makes it. A
//! bill of materials is attached to each platform's manifest: a manifest that names it as its
//! subject (`manifest.md`, "Guidelines for Artifact Usage").

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::archive::{ArchiveError, Top, gunzip, gzip, tar, untar};
use crate::epoch::Epoch;
use crate::hash::sha256;
use crate::tree::{FILE, Tree, TreeError};

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const EMPTY: &str = "application/vnd.oci.empty.v1+json";
const BILL: &str = "application/vnd.cyclonedx+json";

/// The folder of the blobs in the layout.
const BLOBS: &str = "blobs/sha256/";

/// An image for several platforms.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    /// Its name in a registry, without a tag.
    pub(crate) name: &'static str,
    pub(crate) version: String,
    /// The commit that it is made of.
    pub(crate) revision: String,
    pub(crate) source: &'static str,
    pub(crate) licence: &'static str,
    pub(crate) title: &'static str,
    pub(crate) description: &'static str,
    /// The command that a container runs by default.
    pub(crate) command: Vec<&'static str>,
    pub(crate) platforms: Vec<Platform>,
}

/// What an image has for a platform.
#[derive(Debug, Clone)]
pub(crate) struct Platform {
    /// In Go's words: `amd64`, `arm64`.
    pub(crate) architecture: &'static str,
    /// The lowest first.
    pub(crate) layers: Vec<Tree>,
    /// A bill of materials in CycloneDX's JSON for each executable.
    pub(crate) bills: Vec<Vec<u8>>,
}

/// An archive is not an image, or a damaged one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OciError {
    #[error("read the image's archive")]
    Archive(#[source] ArchiveError),
    #[error("the image has no {path}")]
    Missing { path: String },
    #[error("{digest} does not have the content that its name says")]
    Digest { digest: String },
    #[error("{digest} has {is} bytes, and is said to have {said}")]
    Size { digest: String, said: u64, is: usize },
    #[error("{path} is not the JSON that is expected: {what}")]
    Json { path: String, what: String },
    #[error("layer {digest}")]
    Layer {
        digest: String,
        #[source]
        source: ArchiveError,
    },
}

impl Image {
    /// Writes the image.
    pub(crate) fn write(&self, epoch: Epoch) -> Result<Vec<u8>, ArchiveError> {
        let mut blobs = Blobs::default();
        let mut manifests = Vec::new();
        let mut attached = Vec::new();
        for platform in &self.platforms {
            let mut manifest = self.manifest(platform, epoch, &mut blobs)?;
            for bill in &platform.bills {
                attached.push(attach(bill, &manifest, epoch, &mut blobs)?);
            }
            manifest["platform"] = json!({ "architecture": platform.architecture, "os": "linux" });
            manifests.push(manifest);
        }
        let index = json!({
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": manifests,
            "annotations": self.labels(epoch),
        });
        let mut index = blobs.put(INDEX, text(&index))?;
        index["annotations"] = json!({
            "org.opencontainers.image.ref.name": self.version,
            "io.containerd.image.name": format!("{}:{}", self.name, self.version),
        });
        let mut named = vec![index];
        named.append(&mut attached);
        let top = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": named });
        let mut tree = blobs.0;
        tree.file("index.json", FILE, text(&top))?;
        tree.file("oci-layout", FILE, text(&json!({ "imageLayoutVersion": "1.0.0" })))?;
        tar(&tree, Top::Bare, epoch)
    }

    /// Puts a platform's manifest, with its configuration and layers; returns its descriptor.
    fn manifest(
        &self,
        platform: &Platform,
        epoch: Epoch,
        blobs: &mut Blobs,
    ) -> Result<Value, ArchiveError> {
        let (mut layers, mut plain) = (Vec::new(), Vec::new());
        for layer in &platform.layers {
            let archive = tar(layer, Top::Bare, epoch)?;
            plain.push(format!("sha256:{}", sha256(&archive)));
            layers.push(blobs.put(LAYER, gzip(&archive)?)?);
        }
        let history: Vec<Value> = plain
            .iter()
            .map(|_| json!({ "created": epoch.iso(), "created_by": "cargo xtask release" }))
            .collect();
        let config = json!({
            "architecture": platform.architecture,
            "os": "linux",
            "created": epoch.iso(),
            "config": { "Cmd": self.command, "Labels": self.labels(epoch), "WorkingDir": "/" },
            "rootfs": { "type": "layers", "diff_ids": plain },
            "history": history,
        });
        let config = blobs.put(CONFIG, text(&config))?;
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config,
            "layers": layers,
            "annotations": self.labels(epoch),
        });
        Ok(blobs.put(MANIFEST, text(&manifest))?)
    }

    /// Returns the labels that registries and people read (`annotations.md`).
    fn labels(&self, epoch: Epoch) -> BTreeMap<String, String> {
        let labels = [
            ("created", epoch.iso()),
            ("description", self.description.to_owned()),
            ("licenses", self.licence.to_owned()),
            ("revision", self.revision.clone()),
            ("source", self.source.to_owned()),
            ("title", self.title.to_owned()),
            ("version", self.version.clone()),
        ];
        let full =
            |(key, value): (&str, String)| (format!("org.opencontainers.image.{key}"), value);
        labels.into_iter().map(full).collect()
    }
}

/// Puts a manifest that attaches a bill of materials; returns its descriptor.
fn attach(
    bill: &[u8],
    subject: &Value,
    epoch: Epoch,
    blobs: &mut Blobs,
) -> Result<Value, TreeError> {
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": BILL,
        "config": blobs.put(EMPTY, b"{}".to_vec())?,
        "layers": [blobs.put(BILL, bill.to_vec())?],
        "subject": subject,
        "annotations": { "org.opencontainers.image.created": epoch.iso() },
    });
    let mut descriptor = blobs.put(MANIFEST, text(&manifest))?;
    descriptor["artifactType"] = json!(BILL);
    Ok(descriptor)
}

fn text(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

/// The blobs of a layout.
#[derive(Debug, Default)]
struct Blobs(Tree);

impl Blobs {
    /// Adds a blob unless it is there, and returns its descriptor.
    fn put(&mut self, kind: &str, bytes: Vec<u8>) -> Result<Value, TreeError> {
        let (hash, size) = (sha256(&bytes), bytes.len());
        let path = format!("{BLOBS}{hash}");
        if self.0.get(&path).is_none() {
            self.0.file(&path, FILE, bytes)?;
        }
        Ok(json!({ "mediaType": kind, "digest": format!("sha256:{hash}"), "size": size }))
    }
}

/// Reads an image: the layers of each platform, by its architecture. Every blob is compared with
/// the hash in its name, and every descriptor with its blob.
pub(crate) fn read(archive: &[u8]) -> Result<BTreeMap<String, Vec<Tree>>, OciError> {
    let tree = untar(archive).map_err(OciError::Archive)?;
    for (path, bytes) in tree.files() {
        if let Some(hash) = path.strip_prefix(BLOBS)
            && sha256(bytes) != hash
        {
            return Err(OciError::Digest { digest: format!("sha256:{hash}") });
        }
    }
    let layout = Layout(&tree);
    let mut platforms = BTreeMap::new();
    for index in array(&layout.json("index.json")?, "index.json", "manifests")? {
        let is_index = index["mediaType"] == INDEX;
        let (path, index) = layout.follow(&index)?;
        if !is_index {
            for attached in array(&index, &path, "layers")? {
                layout.blob(&attached)?;
            }
            continue;
        }
        for descriptor in array(&index, &path, "manifests")? {
            let (path, manifest) = layout.follow(&descriptor)?;
            let (config_path, config) = layout.follow(&manifest["config"])?;
            let said = descriptor["platform"]["architecture"].as_str();
            let architecture = config["architecture"].as_str().filter(|is| Some(*is) == said);
            let architecture = architecture.ok_or_else(|| {
                let what = format!("the architecture {}", descriptor["platform"]);
                OciError::Json { path: config_path, what }
            })?;
            let mut layers = Vec::new();
            for layer in array(&manifest, &path, "layers")? {
                let (digest, bytes) = layout.blob(&layer)?;
                let read = gunzip(bytes).and_then(|plain| untar(&plain));
                layers.push(read.map_err(|source| OciError::Layer { digest, source })?);
            }
            platforms.insert(architecture.to_owned(), layers);
        }
    }
    Ok(platforms)
}

/// A layout that is read.
struct Layout<'t>(&'t Tree);

impl<'t> Layout<'t> {
    fn file(&self, path: &str) -> Result<&'t [u8], OciError> {
        let entry = self.0.get(path).ok_or_else(|| OciError::Missing { path: path.to_owned() })?;
        Ok(entry.bytes())
    }

    fn json(&self, path: &str) -> Result<Value, OciError> {
        let wrong = |error: serde_json::Error| OciError::Json {
            path: path.to_owned(),
            what: error.to_string(),
        };
        serde_json::from_slice(self.file(path)?).map_err(wrong)
    }

    /// Returns the path and content of the document that a descriptor names.
    fn follow(&self, descriptor: &Value) -> Result<(String, Value), OciError> {
        let (digest, _) = self.blob(descriptor)?;
        let path = digest.replace("sha256:", BLOBS);
        let value = self.json(&path)?;
        Ok((path, value))
    }

    /// Returns the digest and bytes of what a descriptor names.
    fn blob(&self, descriptor: &Value) -> Result<(String, &'t [u8]), OciError> {
        let digest = descriptor["digest"].as_str().unwrap_or_default().to_owned();
        let bytes = self.file(&digest.replace("sha256:", BLOBS))?;
        let said = descriptor["size"].as_u64().unwrap_or_default();
        if u64::try_from(bytes.len()) != Ok(said) {
            return Err(OciError::Size { digest, said, is: bytes.len() });
        }
        Ok((digest, bytes))
    }
}

fn array(value: &Value, path: &str, key: &str) -> Result<Vec<Value>, OciError> {
    value[key]
        .as_array()
        .cloned()
        .ok_or_else(|| OciError::Json { path: path.to_owned(), what: format!("no list {key:?}") })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{BLOBS, Blobs, INDEX, Image, OciError, Platform, read, text};
    use crate::archive::{Top, tar, untar};
    use crate::epoch::Epoch;
    use crate::tests::said;
    use crate::tree::{FILE, PROGRAM, Tree};

    fn epoch() -> Epoch {
        "1795687200".parse().unwrap()
    }

    fn platform(architecture: &'static str) -> Platform {
        let (mut programs, mut texts) = (Tree::default(), Tree::default());
        programs.file("opt/netwright/netwright", PROGRAM, architecture.as_bytes()).unwrap();
        texts.file("usr/share/doc/netwright/copyright", FILE, *b"free\n").unwrap();
        Platform {
            architecture,
            layers: vec![texts, programs],
            bills: vec![format!("{{\"for\":\"{architecture}\"}}").into_bytes()],
        }
    }

    fn image() -> Image {
        Image {
            name: "example.com/netwright",
            version: "0.1.0".to_owned(),
            revision: "abc".to_owned(),
            source: "https://example.com/source",
            licence: "Apache-2.0",
            title: "netwright",
            description: "container networking",
            command: vec!["/opt/netwright/netwright"],
            platforms: vec![platform("amd64"), platform("arm64")],
        }
    }

    #[test]
    fn it_is_the_same_twice_and_read_back() {
        let written = image().write(epoch()).unwrap();
        assert_eq!(written, image().write(epoch()).unwrap());
        let read = read(&written).unwrap();
        let architectures: Vec<&String> = read.keys().collect();
        assert_eq!(architectures, ["amd64", "arm64"]);
        assert_eq!(read["arm64"], platform("arm64").layers);
    }

    /// Returns the written image with its blobs changed.
    fn changed(change: impl Fn(&str, &[u8]) -> Option<Vec<u8>>) -> Vec<u8> {
        let tree = untar(&image().write(epoch()).unwrap()).unwrap();
        let mut other = Tree::default();
        for (path, bytes) in tree.files() {
            if let Some(bytes) = change(path, bytes) {
                other.file(path, FILE, bytes).unwrap();
            }
        }
        tar(&other, Top::Bare, epoch()).unwrap()
    }

    #[test]
    fn damage_is_an_error() {
        let same = changed(|_, bytes| Some(bytes.to_vec()));
        assert_eq!(same, image().write(epoch()).unwrap());
        let is_layer = |bytes: &[u8]| bytes.starts_with(&[0x1f, 0x8b]);
        let cut = changed(|_, bytes| {
            let end = if is_layer(bytes) { bytes.len() / 2 } else { bytes.len() };
            Some(bytes[..end].to_vec())
        });
        assert!(matches!(read(&cut), Err(OciError::Digest { .. })));
        let without = changed(|_, bytes| (!is_layer(bytes)).then(|| bytes.to_vec()));
        assert!(matches!(read(&without), Err(OciError::Missing { .. })));
        let resized = changed(|path, bytes| {
            let is_top = path == "index.json";
            let other = String::from_utf8_lossy(bytes).replacen("\"size\":", "\"size\":1", 1);
            Some(if is_top { other.into_bytes() } else { bytes.to_vec() })
        });
        assert!(matches!(read(&resized), Err(OciError::Size { .. })));
        let nonsense = changed(|path, bytes| {
            Some(if path.starts_with(BLOBS) { bytes.to_vec() } else { b"[]".to_vec() })
        });
        assert!(matches!(read(&nonsense), Err(OciError::Json { .. })));
        assert!(matches!(read(b"nothing of the kind"), Err(OciError::Archive(_))));
    }

    #[test]
    fn an_architecture_that_is_not_the_configurations_is_refused() {
        let tree = untar(&image().write(epoch()).unwrap()).unwrap();
        let json = |path: &str| -> Value {
            serde_json::from_slice(tree.get(path).unwrap().bytes()).unwrap()
        };
        let mut top = json("index.json");
        let digest = top["manifests"][0]["digest"].as_str().unwrap();
        let mut index = json(&digest.replace("sha256:", BLOBS));
        index["manifests"][1]["platform"]["architecture"] = json!("riscv64");
        let mut blobs = Blobs::default();
        top["manifests"][0] = blobs.put(INDEX, text(&index)).unwrap();
        let mut other = blobs.0;
        other.file("index.json", FILE, text(&top)).unwrap();
        for (path, bytes) in tree.files().filter(|(path, _)| *path != "index.json") {
            other.file(path, FILE, bytes).unwrap();
        }
        let refused = read(&tar(&other, Top::Bare, epoch()).unwrap()).unwrap_err();
        assert!(refused.to_string().contains("riscv64"), "{refused}");
    }

    #[test]
    fn skopeo_reads_both_platforms() {
        testkit::require!("program:skopeo");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image.tar");
        std::fs::write(&path, image().write(epoch()).unwrap()).unwrap();
        let archive = format!("oci-archive:{}:0.1.0", path.display());
        for architecture in ["amd64", "arm64"] {
            let said = said("skopeo", &["--override-arch", architecture, "inspect", &archive]);
            let said: serde_json::Value = serde_json::from_str(&said).unwrap();
            assert_eq!(said["Architecture"], architecture);
            assert_eq!(said["Created"], "2026-11-26T10:00:00Z");
            assert_eq!(said["Layers"].as_array().unwrap().len(), 2);
            assert_eq!(said["Labels"]["org.opencontainers.image.version"], "0.1.0");
        }
        // The bills are images too: without the version skopeo would not know which one is meant.
        let copied = dir.path().join("copied");
        let into = format!("dir:{}", copied.display());
        said("skopeo", &["--insecure-policy", "copy", "--all", &archive, &into]);
        let index = std::fs::read(copied.join("manifest.json")).unwrap();
        let index: Value = serde_json::from_slice(&index).unwrap();
        assert_eq!(index["manifests"].as_array().unwrap().len(), 2);
    }

    /// umoci compares each layer with the hash of its content, too. It takes no index of several
    /// platforms, so skopeo chooses one.
    #[test]
    fn umoci_unpacks_each_platform() {
        testkit::require!("full", "root", "program:skopeo", "program:umoci");
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        std::fs::write(path("image.tar"), image().write(epoch()).unwrap()).unwrap();
        let archive = format!("oci-archive:{}:0.1.0", path("image.tar"));
        for architecture in ["amd64", "arm64"] {
            let layout = format!("{}:0.1.0", path(architecture));
            let into = format!("oci:{layout}");
            let options = ["--insecure-policy", "--override-arch", architecture];
            said("skopeo", &[&options[..], &["copy", &archive, &into]].concat());
            let bundle = path(&format!("{architecture}-bundle"));
            said("umoci", &["unpack", "--image", &layout, &bundle]);
            let file = |name: &str| std::fs::read(format!("{bundle}/{name}")).unwrap();
            assert_eq!(file("rootfs/opt/netwright/netwright"), architecture.as_bytes());
            assert_eq!(file("rootfs/usr/share/doc/netwright/copyright"), b"free\n");
            let config: Value = serde_json::from_slice(&file("config.json")).unwrap();
            assert_eq!(config["process"]["args"], json!(["/opt/netwright/netwright"]));
        }
    }
}
