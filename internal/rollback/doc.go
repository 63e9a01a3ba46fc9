/*
Copyright The AlterShield Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

// Package rollback decides whether the pods of a release come up, which releases are rolled back, and
// which pods are evicted. Its functions are pure: their input is the state that was read, and the time.
//
//	quarantine.go history.go versions that are denied, and targets of rollbacks
//	start.go                 whether the pods of a release come up
//	limit.go                 how many rollbacks are allowed
//	rollback.go              which releases are rolled back
//	fate.go evict.go         abandoned versions, and stuck pods of these versions
package rollback
