//! A client of the Hub: what a repository has, and its files by range.
