//! `download`: files of a repository come into the cache.
