// Package peers starts the measured programs: the gateway on each engine, and the programs that it is compared with,
// each with its best settings. conf/ contains the templates of the configurations.
package peers
